//! Renews what programs print on the real data, which takes minutes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::book::Book;
use crate::chapter::Kind;

/// Runs the programs of a chapter's recorded blocks, one after another, if their commands contain `only`.
/// Writes the output of each as soon as the program ends; returns the number of programs.
///
/// # Errors
/// If `FASHION_MNIST_DIR` names no folder, or a program fails.
pub fn record(book: &Book, name: &str, only: &str) -> Result<usize> {
    let mut chapter = book.chapter(name)?;
    let mut count = 0;
    for i in 0..chapter.pieces.len() {
        let Kind::Recorded(command) = &chapter.pieces[i].kind else {
            continue;
        };
        if !command.contains(only) {
            continue;
        }
        let line = cargo(command);
        let place = || format!("{}: {line}", book.name(name));
        let printed = run(&book.root, &line).with_context(place)?;
        chapter.pieces[i].body = format!("```text\n{}\n{printed}\n```\n", shown(&line));
        book.write(&format!("{name}.md"), &chapter.to_string())?;
        count += 1;
    }
    Ok(count)
}

/// The command line of a block: `scratch --gpus 2`, or `--example NAME ARGS`.
fn cargo(command: &str) -> String {
    let (option, rest) = match command.strip_prefix("--example ") {
        Some(rest) => ("--example", rest),
        None => ("-p", command),
    };
    match rest.split_once(' ') {
        Some((name, arguments)) => format!("cargo run --release {option} {name} -- {arguments}"),
        None => format!("cargo run --release {option} {rest}"),
    }
}

/// A command as it is typed, in lines of at most 100 characters.
fn shown(command: &str) -> String {
    let mut lines = vec![String::from("$")];
    for word in command.split(' ') {
        let last = lines.last_mut().expect("one at least");
        if last.len() + word.len() > 98 {
            *last += " \\";
            lines.push(format!("    {word}"));
        } else {
            *last += &format!(" {word}");
        }
    }
    lines.join("\n")
}

/// Returns what a command prints; this machine's folder of images is `$FASHION_MNIST_DIR` in both.
fn run(root: &Path, line: &str) -> Result<String> {
    const VARIABLE: &str = "FASHION_MNIST_DIR";
    let data = env::var(VARIABLE).unwrap_or_default();
    let data = fs::canonicalize(&data).with_context(|| {
        format!("{VARIABLE}={data:?}: it has to name the folder with the real Fashion-MNIST's four IDX files")
    })?;
    eprintln!("$ {line}");
    let output = Command::new("sh")
        .args(["-c", line])
        .current_dir(root)
        .env(VARIABLE, &data)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "{}", output.status);
    let text = String::from_utf8_lossy(&output.stdout)
        .replace(&data.display().to_string(), &format!("${VARIABLE}"));
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::{cargo, shown};

    #[test]
    fn a_long_command_is_folded() {
        assert_eq!(shown("cargo run"), "$ cargo run");
        let folded = shown(&("cargo run --".to_owned() + &" --option 1".repeat(10)));
        let (first, second) = folded.split_once('\n').unwrap();
        assert!(first.ends_with(" 1 \\") && first.len() <= 100, "{first}");
        assert!(second.starts_with("    --option"), "{second}");
    }

    #[test]
    fn a_block_says_what_is_run() {
        for (block, line) in [
            ("scratch --gpus 2", "-p scratch -- --gpus 2"),
            ("concise", "-p concise"),
            ("--example 06 --seed 1", "--example 06 -- --seed 1"),
            ("--example 06", "--example 06"),
        ] {
            assert_eq!(cargo(block), format!("cargo run --release {line}"));
        }
    }
}
