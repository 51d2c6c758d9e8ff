//! Makes a function of every chapter: its cells, in order. Line N of what is made is line N of the chapter, and
//! the made file has the chapter's name, so rustc's messages point at the Markdown. A listing is compiled from
//! its source, so that a stale copy can still be renewed; lines stay right whatever its length, because it is a
//! macro (in NAME.listings.rs), used on one line. A `$` in a listing is therefore the one thing that does not compile.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};

#[allow(dead_code)]
#[path = "src/chapter.rs"]
mod chapter;
#[allow(dead_code)]
#[path = "src/item.rs"]
mod item;

use chapter::{Chapter, Kind, Piece, Source};

/// An error in a chapter is a line of cargo's, without a backtrace of this program.
fn main() {
    if let Err(error) = make() {
        println!("cargo::error={}", format!("{error:#}").replace('\n', " "));
    }
}

fn make() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let krate = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").context("cargo sets it")?);
    let root = krate
        .ancestors()
        .nth(2)
        .context("the root of the repository")?;
    println!("cargo::rerun-if-changed=build.rs");
    let (mut modules, mut table) = (String::new(), String::new());
    for folder in [root.join("notebooks-md"), krate.join("tests/chapters")] {
        for page in chapter::pages(&folder)? {
            let file = folder.join(format!("{page}.md"));
            println!("cargo::rerun-if-changed={}", file.display());
            let made = Made::new(root, &page, &file).with_context(|| file.display().to_string())?;
            let [cells, listings] = ["md", "listings.rs"].map(|e| out.join(format!("{page}.{e}")));
            fs::write(&cells, made.cells)?;
            fs::write(&listings, made.listings)?;
            let name = page.replace('-', "_");
            modules += &format!("include!({listings:?});\n#[path = {cells:?}]\nmod {name};\n");
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

/// The Rust that is made of a chapter.
struct Made {
    cells: String,
    listings: String,
}

impl Made {
    fn new(root: &Path, page: &str, file: &Path) -> Result<Self> {
        let chapter = Chapter::parse(&fs::read_to_string(file)?)?;
        let mut made = Self {
            cells: "pub fn run() -> anyhow::Result<()> { ".into(),
            listings: String::new(),
        };
        for piece in &chapter.pieces {
            match &piece.kind {
                Kind::Code {
                    runs: true,
                    source: None,
                } => made.cell(piece),
                Kind::Code {
                    runs: true,
                    source: Some(source),
                } => {
                    let name = format!("{}_{}", page.replace('-', "_"), piece.line);
                    made.listing(root, &name, piece, source)
                        .with_context(|| format!("line {}", piece.line))?;
                }
                _ => made.cells += &"\n".repeat(piece.lines()),
            }
        }
        made.cells += "Ok(()) }\n";
        Ok(made)
    }

    /// Lines that begin with `:` are for Jupyter's kernel.
    fn cell(&mut self, piece: &Piece) {
        self.cells += &format!("crate::cell({});\n", piece.line);
        for line in piece.body.lines() {
            self.cells += if line.starts_with(':') { "" } else { line };
            self.cells += "\n";
        }
        self.cells += "\n";
    }

    fn listing(&mut self, root: &Path, name: &str, piece: &Piece, source: &Source) -> Result<()> {
        println!(
            "cargo::rerun-if-changed={}",
            root.join(&source.file).display()
        );
        let text = item::listing(root, source)?;
        self.listings += &format!("macro_rules! {name} {{ () => {{\n{text}}} }}\n");
        let rest = "\n".repeat(piece.lines());
        self.cells += &format!("crate::cell({}); {name}!();{rest}", piece.line);
        Ok(())
    }
}
