//! Tests the runner on the chapters of `tests/chapters`; the cells of these chapters are in the program too.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use notebook::book::Book;
use notebook::{check, renew, run};
use tempfile::TempDir;

type Test = fn() -> Result<()>;

/// All of them, by name.
pub const TESTS: [(&str, Test); 5] = [
    ("stale_parts_are_renewed", stale_parts_are_renewed),
    ("stale_parts_are_told", stale_parts_are_told),
    ("recorded_parts_are_there", recorded_parts_are_there),
    ("a_cell_that_fails_is_named", a_cell_that_fails_is_named),
    ("a_hanging_cell_is_ended", a_hanging_cell_is_ended),
];

/// A folder with a copy of a chapter.
fn copy(chapter: &str) -> Result<(TempDir, Book)> {
    let folder = tempfile::tempdir()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = format!("{chapter}.md");
    let page = root.join("tests/chapters").join(&file);
    fs::copy(page, folder.path().join(&file))?;
    let book = Book {
        root: root.join("../.."),
        folder: folder.path().into(),
        program: super::PROGRAM.into(),
    };
    Ok((folder, book))
}

/// `prints.md` as `renew` writes it.
const RENEWED: &str = include_str!("../chapters/prints.renewed");

fn stale_parts_are_renewed() -> Result<()> {
    let (_folder, book) = copy("prints")?;
    for picture in ["img/prints-9.svg", "img/prints-more-4.svg"] {
        book.write(picture, "of another cell")?;
    }
    ensure!(check::listings(&book, "prints")?.len() == 2);
    ensure!(check::outputs(&book, "prints")?.len() == 2);
    ensure!(renew::page(&book, "prints")?, "nothing was stale");
    let text = book.text("prints")?;
    ensure!(text == RENEWED, "{text}");
    let mut pictures = book.pictures()?;
    pictures.sort();
    let expected = ["img/prints-4.svg", "img/prints-more-4.svg"];
    ensure!(pictures == expected, "{pictures:?}");
    ensure!(!renew::page(&book, "prints")?, "renewed twice");
    Ok(())
}

/// The renewed chapter, with its picture.
fn renewed() -> Result<(TempDir, Book)> {
    let (folder, book) = copy("prints")?;
    renew::page(&book, "prints")?;
    Ok((folder, book))
}

/// What is said of the renewed chapter after a change.
fn complaints(book: &Book, old: &str, new: &str) -> Result<String> {
    ensure!(RENEWED.contains(old), "no {old:?}");
    book.write("prints.md", &RENEWED.replace(old, new))?;
    let mut complaints = check::listings(book, "prints")?;
    complaints.extend(check::outputs(book, "prints")?);
    Ok(complaints.join("\n"))
}

fn stale_parts_are_told() -> Result<()> {
    let (_folder, book) = renewed()?;
    let (took, takes) = ("took 1.5 ms\n```\n<", "takes 1.5 ms\n```\n<");
    let other_line = "- ![B line](img/prints-4.svg)\n  + ![A line]";
    let other_picture = "- ![A line](img/prints-5.svg)";
    let other_area = "- area 3.139\n  + area 3.142";
    for (old, new, line, difference) in [
        ("area 3.142", "area 3.144", "", ""),
        ("area 3.142", "area 3.139", "31", other_area),
        ("area 12.566\n", "", "31", "+ area 12.566"),
        (took, takes, "43", "- takes 1.5 ms\n  + took"),
        ("![A line]", "![B line]", "43", other_line),
        ("prints-4", "prints-5", "43", other_picture),
        ("radius: f64", "radius: f32", "12", "-     radius: f32"),
        ("radius.powi(2)\n}\n```", "x\n}\n```", "50", "PI * self.x"),
    ] {
        let told = complaints(&book, old, new)?;
        let place = format!("prints.md:{line}: ");
        let is_told = told.contains(&place) && told.contains("renew prints");
        let right = told.contains(difference) && is_told != line.is_empty();
        ensure!(right, "{old:?} to {new:?}: {told}");
    }
    book.write("prints.md", RENEWED)?;
    let svg = fs::read_to_string(book.folder.join("img/prints-4.svg"))?;
    for (old, new, expected) in [("1.5", "7", 0), ("L 1.5", "l 1.5", 1)] {
        book.write("img/prints-4.svg", &svg.replace(old, new))?;
        let told = check::outputs(&book, "prints")?;
        ensure!(told.len() == expected, "{new:?} in the picture: {told:?}");
    }
    Ok(())
}

fn recorded_parts_are_there() -> Result<()> {
    let (_folder, book) = renewed()?;
    let text = "```text\narea 3.142\narea 12.566\n```\n";
    let [old, recorded] = ["", ": recorded"].map(|how| format!("<!-- output{how} -->\n"));
    let old = old + text;
    let told = complaints(&book, &old, &format!("{recorded}```text\nx\n```\n"))?;
    ensure!(told.is_empty(), "{told}");
    let told = complaints(&book, &old, &recorded)?;
    ensure!(told.contains("prints.md:31: the output is empty"), "{told}");

    let command = "<!-- recorded: scratch --gpus 2 -->\n```text\n$ cargo run\n";
    let end = "```\n<!-- /recorded -->\n";
    book.write("runs.md", &format!("{command}test acc: 0.82\n{end}"))?;
    ensure!(check::recorded(&book, "runs")?.is_empty());
    book.write("runs.md", &format!("{command}{end}"))?;
    let told = check::recorded(&book, "runs")?.join("\n");
    ensure!(told.contains("runs.md:1: nothing is recorded"), "{told}");
    Ok(())
}

fn a_cell_that_fails_is_named() -> Result<()> {
    for (chapter, message) in [("fails", "x is 1"), ("panics", "panics.md:9:1:")] {
        let (_folder, book) = copy(chapter)?;
        let before = book.text(chapter)?;
        let error = renew::page(&book, chapter).unwrap_err().to_string();
        let place = format!("{chapter}.md:7: this cell fails");
        let named = error.starts_with(&place) && error.contains(message);
        ensure!(named, "{error}");
        ensure!(book.text(chapter)? == before, "{chapter} was written");
    }
    Ok(())
}

fn a_hanging_cell_is_ended() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let limit = Duration::from_secs(2);
    let ended = run::run(super::PROGRAM.as_ref(), folder.path(), "hangs", limit);
    let error = ended.unwrap_err().to_string();
    let named = error.starts_with("hangs.md:7: this cell was at work");
    ensure!(named, "{error}");
    Ok(())
}
