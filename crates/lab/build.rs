//! Lists the exercises: `exercises.rs` for the program, and for the tests `variants.rs`, which has each gap, each solution
//! and each wrong answer as a module beside its check. `steps.rs` has the right `train_batch` and the wrong ones that
//! exercise 5b is called with.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, ensure};

/// The exercise with the `train_batch` whose wrong answers exercise 5b is called with.
const STEP: &str = "04_train_batch";

/// The titles of these wrong answers.
const MISTAKES: [&str; 6] = [
    "No all-reduce",
    "An all-reduce of copies",
    "Division by the size of a shard",
    "The learning rate times the number of devices",
    "The mean of the means of uneven shards",
    "The loss of a shard",
];

/// An exercise has a file in each. A wrong answer is a change of the solution.
const FOLDERS: [&str; 4] = ["exercises", "checks", "hints", "tests/wrong"];

fn main() -> Result<()> {
    let crate_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for watched in FOLDERS {
        println!("cargo::rerun-if-changed={watched}");
    }
    let names = names(&crate_dir.join("exercises"))?;
    let mut table = String::new();
    let mut variants = Variants::default();
    for file in &names {
        let paths = FOLDERS.map(|folder| crate_dir.join(folder).join(file));
        let [exercise, check, hint, wrong] = &paths;
        let hint = hint.with_extension("md");
        let wrong = wrong.with_extension("md");
        let name = file.trim_end_matches(".rs");
        let (open, right) = gap_and_solution(&read(exercise)?);
        let [gap, solution] =
            &["gap", "solution"].map(|kind| out.join(format!("{name}_{kind}.rs")));
        fs::write(gap, open)?;
        fs::write(solution, &right)?;
        let hint_file = &out.join(format!("{name}_hint.md"));
        fs::write(hint_file, read(&hint)?)?;
        table += &format!(
            "Exercise {{ name: {name:?}, gap: include_str!({gap:?}), solution: include_str!({solution:?}), \
             solution_file: {solution:?}, hint: include_str!({hint_file:?}) }},\n"
        );
        variants.add("gap", name, "", [gap, check]);
        variants.add("solution", name, "", [solution, check]);
        let mut answers = vec![(String::new(), solution.clone())];
        let mistakes = read(&wrong)?;
        for (i, part) in mistakes.split("## ").skip(1).enumerate() {
            let (says, old, new) = mistake(part).with_context(|| part.to_owned())?;
            let count = right.matches(&old).count();
            ensure!(count == 1, "{old}\nis not once in {exercise:?}");
            let answer = out.join(format!("{name}_{i}.rs"));
            fs::write(&answer, right.replace(&old, &new))?;
            variants.add("wrong", name, says, [&answer, check]);
            let title = part.lines().next().unwrap_or_default().to_owned();
            answers.push((title, answer));
        }
        if name == STEP {
            fs::write(out.join("steps.rs"), steps(&answers)?)?;
        }
    }
    fs::write(out.join("exercises.rs"), format!("&[{table}]"))?;
    let Variants { modules, list } = variants;
    let variants = format!("{modules}const VARIANTS: &[Variant] = &[{list}];");
    fs::write(out.join("variants.rs"), variants)?;
    Ok(())
}

/// Code of the library: a module for each step, the constant `RIGHT`, and the list `WRONG` with titles.
fn steps(answers: &[(String, PathBuf)]) -> Result<String> {
    let module = |name: &str, file: &Path| {
        format!("#[allow(clippy::all, unused)] mod {name} {{ include!({file:?}); }}\n",)
    };
    let (_, solution) = &answers[0];
    let mut modules = module("right", solution);
    let mut list = String::new();
    for (i, title) in MISTAKES.iter().enumerate() {
        let found = answers.iter().find(|(of, _)| of == title);
        let (_, file) = found.with_context(|| format!("no wrong answer {title:?} to {STEP}"))?;
        modules += &module(&format!("wrong_{i}"), file);
        list += &format!("({title:?}, wrong_{i}::train_batch as TrainBatch),\n");
    }
    Ok(format!(
        "{modules}\
         /// The right one.\npub const RIGHT: TrainBatch = right::train_batch;\n\
         /// Wrong ones, with what is wrong in them.\npub const WRONG: &[(&str, TrainBatch)] = &[{list}];\n"
    ))
}

/// The text of a file, in which lines end with LF: in a checkout they may end with CR LF.
fn read(file: &Path) -> Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("{file:?}"))?;
    Ok(text.replace("\r\n", "\n"))
}

/// Returns the text that readers begin with, and the solution. The lines after `// gap: TEXT`, up to `// end of gap`,
/// are of the solution only. The other has TEXT there, or nothing.
fn gap_and_solution(exercise: &str) -> (String, String) {
    let mut gap = String::new();
    let mut solution = String::new();
    let mut in_gap = false;
    for line in exercise.split_inclusive('\n') {
        if let Some((indent, text)) = line.split_once("// gap:") {
            in_gap = true;
            if !text.trim().is_empty() {
                gap += &format!("{indent}{}", text.trim_start());
            }
        } else if line.trim() == "// end of gap" {
            in_gap = false;
        } else {
            solution += line;
            if !in_gap {
                gap += line;
            }
        }
    }
    (gap, solution)
}

/// The Rust files of a folder, in order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".rs") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Code of the tests: a module for each answer with its check, and the list of them.
#[derive(Default)]
struct Variants {
    modules: String,
    list: String,
}

impl Variants {
    fn add(&mut self, kind: &str, name: &str, says: &str, [answer, check]: [&Path; 2]) {
        let module = format!("variant_{}", self.list.lines().count());
        self.modules += &format!(
            "mod {module} {{
                #[allow(unused, clippy::all)] mod exercise {{ include!({answer:?}); }}
                pub mod check {{ include!({check:?}); }}
            }}\n"
        );
        self.list += &format!(
            "Variant {{ kind: {kind:?}, exercise: {name:?}, says: {says:?}, check: {module}::check::check }},\n"
        );
    }
}

/// A wrong answer: words of the sentence that names the mistake, and what is old and what is new in the solution. Reads
/// a line `says: WORDS`, and the lines of a diff.
fn mistake(part: &str) -> Result<(&str, String, String)> {
    let says = part
        .lines()
        .find_map(|line| line.strip_prefix("says: "))
        .context("no line begins with \"says: \"")?;
    let signed = |sign: char| {
        part.lines()
            .filter_map(|line| line.strip_prefix(sign))
            .collect::<Vec<_>>()
            .join("\n")
    };
    Ok((says, signed('-'), signed('+')))
}
