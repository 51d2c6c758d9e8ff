//! Makes a function of every chapter: its cells, in order. Line N of what is made is line N of the chapter, and
//! the made file has the chapter's name, so rustc's messages point at the Markdown. A listing is compiled from
//! its source, so that a stale copy can still be renewed. Below a stale copy lines are right when it is renewed.
//! A function of a listing must not use a name that a cell before it has for a variable.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};

#[allow(dead_code)]
#[path = "src/chapter.rs"]
mod chapter;
#[allow(dead_code)]
#[path = "src/item.rs"]
mod item;

use chapter::{Chapter, Kind};

/// An error in a chapter is a line of cargo's, without a backtrace of this program.
fn main() {
    if let Err(error) = make() {
        println!("cargo::error={}", format!("{error:#}").replace('\n', " "));
    }
}

fn make() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let root = Path::new("../..");
    println!("cargo::rerun-if-changed=build.rs");
    let mut modules = String::new();
    let mut table = String::new();
    for folder in [root.join("notebooks-md"), "tests/chapters".into()] {
        for page in chapter::pages(&folder)? {
            let file = folder.join(format!("{page}.md"));
            println!("cargo::rerun-if-changed={}", file.display());
            let made = function(root, &file).with_context(|| file.display().to_string())?;
            let cells = out.join(format!("{page}.md"));
            fs::write(&cells, made)?;
            let name = page.replace('-', "_");
            modules += &format!("#[path = {cells:?}]\nmod {name};\n");
            table += &format!("    ({page:?}, {name}::run),\n");
        }
        // a new chapter is noticed when it is put into the table of contents
        let contents = folder.join("SUMMARY.md");
        let watched = if contents.exists() { contents } else { folder };
        println!("cargo::rerun-if-changed={}", watched.display());
    }
    let table = format!(
        "pub type Run = fn() -> anyhow::Result<()>;\n\
         pub const CHAPTERS: &[(&str, Run)] = &[\n{table}];\n"
    );
    fs::write(out.join("chapters.rs"), modules + &table)?;
    Ok(())
}

/// A function with the cells of a chapter. An empty line stands for each line that is none of a cell.
fn function(root: &Path, file: &Path) -> Result<String> {
    let chapter = Chapter::parse(&chapter::read(file)?)?;
    let mut made = String::from("pub fn run() -> anyhow::Result<()> { ");
    for piece in &chapter.pieces {
        let Kind::Code { runs: true, source } = &piece.kind else {
            made += &"\n".repeat(piece.to_string().lines().count());
            continue;
        };
        let mut text = piece.body.clone();
        if let Some(source) = source {
            let path = root.join(&source.file);
            println!("cargo::rerun-if-changed={}", path.display());
            let place = || format!("line {}", piece.line);
            text = item::listing(root, source).with_context(place)?;
        }
        made += &format!("crate::cell({});\n", piece.line);
        for line in text.lines() {
            // what begins with `:` is for Jupyter's kernel
            made += if line.starts_with(':') { "" } else { line };
            made += "\n";
        }
        made += "\n";
    }
    Ok(made + "Ok(()) }\n")
}
