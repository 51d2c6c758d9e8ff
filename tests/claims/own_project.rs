//! A package outside of the workspace needs one dependency. Its programs, and the lines of its Cargo.toml, are those of
//! the page "In your own project".

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;

use crate::invariants::{files, src};
use crate::kit::{has, root};

/// The first builds beside the others, some of which measure time: so it waits until it is asked for.
pub fn trials() -> Vec<Trial> {
    let asked = std::env::var_os("OWN_PROJECT").is_some();
    let mut trials = listed!(
        asked,
        "OWN_PROJECT=1",
        the_programs_run_in_a_folder_elsewhere
    );
    trials.extend(listed!(
        true,
        "",
        the_page_has_the_lines_of_the_package,
        the_programs_are_short
    ));
    trials
}

fn file(name: &str) -> Result<String> {
    fs::read_to_string(root().join("tests/own_project").join(name)).context(name.to_owned())
}

/// The packages of the library, as they would be published.
const PACKAGES: [&str; 5] = [
    "data-parallel",
    "data-parallel-collective",
    "data-parallel-devices",
    "data-parallel-functional",
    "data-parallel-training",
];

/// Packs the library into `folder`, unpacks it there, and returns the lines of a Cargo.toml that take it from there.
fn packed(folder: &Path) -> Result<String> {
    let mut package = Command::new(env!("CARGO"));
    package.args("package --no-verify --offline --allow-dirty --target-dir".split(' '));
    package.arg(folder).current_dir(root());
    package.args(PACKAGES.iter().flat_map(|name| ["-p", name]));
    let output = package.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    let mut lines = "\n[patch.crates-io]\n".to_owned();
    for name in PACKAGES {
        let whole = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let file = folder.join("package").join(format!("{whole}.crate"));
        let mut unpack = Command::new("tar");
        // with the time of now: files in a package are of 2006, so what was built of others would count as fresh
        let status = unpack.arg("xzmf").arg(&file).current_dir(folder).status()?;
        ensure!(status.success(), "{file:?}: {status}");
        let unpacked = folder.join(&whole);
        lines += &format!("{name} = {{ path = {unpacked:?} }}\n");
    }
    Ok(lines)
}

/// On the packed library, with the versions of this workspace, because no network is asked for others, and in its target
/// folder, because the profile is the same: what is there is not built again.
fn the_programs_run_in_a_folder_elsewhere() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let elsewhere = folder.path();
    let manifest = file("Cargo.toml")?;
    let here = "{ path = \"../../crates/data-parallel\" }";
    has(&manifest, here)?;
    let version = concat!("\"", env!("CARGO_PKG_VERSION"), "\"");
    let for_docs = "\n[dev-dependencies]\ntempfile = \"3\"\n"; // the examples with files write into such a folder
    let packed = packed(&elsewhere.join("packed"))?;
    let manifest = manifest.replace(here, version) + for_docs + &packed;
    fs::write(elsewhere.join("Cargo.toml"), manifest)?;
    fs::copy(root().join("Cargo.lock"), elsewhere.join("Cargo.lock"))?;
    for part in ["src", "src/bin", "tests"] {
        fs::create_dir(elsewhere.join(part))?;
        for entry in fs::read_dir(root().join("tests/own_project").join(part))? {
            let entry = entry?;
            if entry.path().is_dir() {
                continue;
            }
            fs::copy(entry.path(), elsewhere.join(part).join(entry.file_name()))?;
        }
    }
    fs::create_dir(elsewhere.join("examples"))?;
    fs::write(elsewhere.join("examples/docs.rs"), doc_examples()?)?;
    let exe = std::env::current_exe()?;
    let target = exe.ancestors().nth(3).context("no target folder")?;
    let profile = exe.ancestors().nth(2);
    let optimized = profile.is_some_and(|profile| profile.ends_with("release"));
    let cargo = |args: &[&str]| -> Result<(bool, String)> {
        let mut command = Command::new(env!("CARGO"));
        command.args(args).arg("--offline");
        command.args(optimized.then_some("--release"));
        let command = command.current_dir(elsewhere);
        let output = command.env("CARGO_TARGET_DIR", target).output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8(said)?))
    };
    let (success, said) = cargo(&["test"])?;
    ensure!(success, "{said}");
    let programs = fs::read_dir(elsewhere.join("tests"))?.count();
    let ran = said.matches("\ntest result: ok. ").count();
    ensure!(ran >= programs && !said.contains("warning"), "{said}");

    fs::write(elsewhere.join("examples/wrong.rs"), WRONG)?;
    let (success, said) = cargo(&["build", "--example", "wrong"])?;
    ensure!(!success, "it is right");
    has(&said, "Linear` is no network or layer of this library")?;
    let todo = "wrap a module or a function of candle's tensors: `candle(module)`";
    has(&said, todo)
}

/// A program with every example in the documentation of the library, each as a function: it has no other dependency, as
/// a reader's program has none.
fn doc_examples() -> Result<String> {
    let mut program = "#![allow(unused, clippy::all)]\nfn main() {}\n".to_owned();
    let mut count = 0;
    for file in files(&src("data-parallel"))? {
        let text = fs::read_to_string(file)?;
        let mut example: Option<Vec<&str>> = None;
        for line in text.lines() {
            let doc = line.trim_start();
            let doc = doc.strip_prefix("///").or_else(|| doc.strip_prefix("//!"));
            let doc = doc.map(|doc| doc.strip_prefix(' ').unwrap_or(doc));
            match (doc, &mut example) {
                (Some("```" | "```no_run"), None) => example = Some(Vec::new()),
                (Some("```"), Some(lines)) => {
                    count += 1;
                    let code = lines.join("\n");
                    let returns = if lines.last().is_some_and(|last| last.contains("Ok")) {
                        " -> std::result::Result<(), impl std::fmt::Debug>"
                    } else {
                        ""
                    };
                    program += &format!("fn example_{count}(){returns} {{\n{code}\n}}\n");
                    example = None;
                }
                (Some(doc), Some(lines)) => {
                    lines.push(doc.strip_prefix("# ").unwrap_or(doc));
                }
                _ => {}
            }
        }
    }
    ensure!(count > 30, "{count} examples were found");
    Ok(program)
}

/// A layer of candle's, not wrapped.
const WRONG: &str = r#"
use data_parallel::prelude::*;

fn network(vb: VarBuilder<'_>) -> Result<Sequential> {
    Ok(Sequential::new().add(candle_nn::linear(2, 2, vb)?))
}

fn main() {
    let _ = network;
}
"#;

fn the_page_has_the_lines_of_the_package() -> Result<()> {
    let page = fs::read_to_string(root().join("notebooks-md/your-own-project.md"))?;
    let manifest = file("Cargo.toml")?;
    let profile = manifest.find("[profile.dev]").context("no profile")?;
    has(&page, &manifest[profile..])?;
    // and they are those of the workspace
    let ours = fs::read_to_string(root().join("Cargo.toml"))?;
    for line in manifest[profile..].lines() {
        has(&ours, line)?;
    }
    Ok(())
}

/// Lines of the function that is the program.
fn the_programs_are_short() -> Result<()> {
    let circle = file("src/bin/circle.rs")?;
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let lines = circle.lines().filter(is_code).count();
    ensure!(lines <= 45, "circle has {lines} lines");
    for (name, most) in [("cnn", 30), ("regression", 20)] {
        let text = file(&format!("tests/{name}.rs"))?;
        let program = text.split("#[test]\n").nth(1).context("no test")?;
        let lines = program.lines().filter(|line| !line.trim().is_empty());
        let lines = lines.count();
        ensure!(lines <= most, "{name} has {lines} lines");
    }
    Ok(())
}
