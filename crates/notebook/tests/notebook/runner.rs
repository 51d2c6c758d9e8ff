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
pub const TESTS: [(&str, Test); 7] = [
    ("stale_parts_are_renewed", stale_parts_are_renewed),
    ("fresh_parts_stay", fresh_parts_stay),
    (
        "what_is_not_printed_is_complained_of",
        what_is_not_printed_is_complained_of,
    ),
    (
        "recorded_outputs_only_have_to_be_there",
        recorded_outputs_only_have_to_be_there,
    ),
    ("recorded_runs_are_not_empty", recorded_runs_are_not_empty),
    ("a_cell_that_fails_is_named", a_cell_that_fails_is_named),
    (
        "a_cell_that_does_not_end_is_ended",
        a_cell_that_does_not_end_is_ended,
    ),
];

/// A folder with a copy of a chapter.
fn copy(chapter: &str) -> Result<(TempDir, Book)> {
    let folder = tempfile::tempdir()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = format!("{chapter}.md");
    fs::copy(
        root.join("tests/chapters").join(&file),
        folder.path().join(&file),
    )?;
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
    let (folder, book) = copy("prints")?;
    fs::create_dir(folder.path().join("img"))?;
    for picture in ["prints-9.svg", "prints-more-4.svg"] {
        fs::write(folder.path().join("img").join(picture), "of another cell")?;
    }
    ensure!(check::listings(&book, "prints")?.len() == 2);
    ensure!(check::outputs(&book, "prints")?.len() == 2);
    ensure!(renew::chapter(&book, "prints")?, "nothing was stale");
    let text = book.text("prints")?;
    ensure!(text == RENEWED, "{text}");
    let mut pictures = book.pictures()?;
    pictures.sort();
    ensure!(
        pictures == ["img/prints-4.svg", "img/prints-more-4.svg"],
        "{pictures:?}"
    );
    Ok(())
}

/// The renewed chapter, with its picture.
fn renewed() -> Result<(TempDir, Book)> {
    let (folder, book) = copy("prints")?;
    renew::chapter(&book, "prints")?;
    Ok((folder, book))
}

fn fresh_parts_stay() -> Result<()> {
    let (_folder, book) = renewed()?;
    ensure!(!renew::chapter(&book, "prints")?, "renewed twice");
    let complaints = [
        check::listings(&book, "prints")?,
        check::outputs(&book, "prints")?,
    ]
    .concat();
    ensure!(complaints.is_empty(), "{complaints:?}");
    Ok(())
}

/// What is said of the renewed chapter after a change.
fn complaints(old: &str, new: &str) -> Result<String> {
    let (_folder, book) = renewed()?;
    ensure!(RENEWED.contains(old), "no {old:?}");
    book.write("prints.md", &RENEWED.replace(old, new))?;
    Ok([
        check::listings(&book, "prints")?,
        check::outputs(&book, "prints")?,
    ]
    .concat()
    .join("\n"))
}

fn what_is_not_printed_is_complained_of() -> Result<()> {
    for same in ["area 3.140", "area 3.144"] {
        let told = complaints("area 3.142", same)?;
        ensure!(told.is_empty(), "{same}: {told}");
    }
    ensure!(complaints("1.5 ms\n```\n<", "33 µs\n```\n<")?.is_empty());
    for (old, new, expected) in [
        (
            "area 3.142",
            "area 3.139",
            ["prints.md:31: ", "- area 3.139", "+ area 3.142"],
        ),
        (
            "area 12.566\n",
            "",
            ["prints.md:31: ", "+ area 12.566", "renew prints"],
        ),
        (
            "took 1.5 ms\n```\n<",
            "takes 1.5 ms\n```\n<",
            ["prints.md:43: ", "- takes", "+ took"],
        ),
        (
            "![A line]",
            "![B line]",
            ["prints.md:43: ", "- ![B line]", "+ ![A line]"],
        ),
        (
            "prints-4",
            "prints-5",
            ["prints.md:43: ", "- ![A line](img/prints-5.svg)", ""],
        ),
        (
            "radius: f64",
            "radius: f32",
            ["prints.md:12: ", "-     radius: f32", "renew prints"],
        ),
        (
            "radius.powi(2)\n}\n```",
            "x\n}\n```",
            ["prints.md:50: ", "", ""],
        ),
    ] {
        let told = complaints(old, new)?;
        ensure!(
            expected.iter().all(|e| told.contains(e)),
            "{old:?} to {new:?}: {told}"
        );
    }
    let (folder, book) = renewed()?;
    let picture = folder.path().join("img/prints-4.svg");
    let svg = fs::read_to_string(&picture)?;
    fs::write(&picture, svg.replace("1.5", "7"))?;
    ensure!(
        check::outputs(&book, "prints")?.is_empty(),
        "numbers of a picture are compared"
    );
    fs::write(&picture, svg.replace("L 1.5", "l 1.5"))?;
    ensure!(
        check::outputs(&book, "prints")?.len() == 1,
        "another picture is taken for this one"
    );
    Ok(())
}

fn recorded_outputs_only_have_to_be_there() -> Result<()> {
    let (old, text) = (
        "<!-- output -->\n",
        "```text\narea 3.142\narea 12.566\n```\n",
    );
    let recorded = "<!-- output: recorded -->\n";
    let told = complaints(
        &format!("{old}{text}"),
        &format!("{recorded}```text\nx\n```\n"),
    )?;
    ensure!(told.is_empty(), "{told}");
    let told = complaints(&format!("{old}{text}"), recorded)?;
    ensure!(told.contains("prints.md:31: the output is empty"), "{told}");
    Ok(())
}

fn recorded_runs_are_not_empty() -> Result<()> {
    let (_folder, book) = copy("prints")?;
    let command = "<!-- recorded: scratch --gpus 2 -->\n```text\n$ cargo run\n";
    book.write(
        "runs.md",
        &format!("{command}test acc: 0.82\n```\n<!-- /recorded -->\n"),
    )?;
    ensure!(check::recorded(&book, "runs")?.is_empty());
    book.write("runs.md", &format!("{command}```\n<!-- /recorded -->\n"))?;
    let told = check::recorded(&book, "runs")?.join("\n");
    ensure!(told.contains("runs.md:1: nothing is recorded"), "{told}");
    Ok(())
}

fn a_cell_that_fails_is_named() -> Result<()> {
    for (chapter, message) in [("fails", "x is 1"), ("panics", "panics.md:9:1:")] {
        let (_folder, book) = copy(chapter)?;
        let before = book.text(chapter)?;
        let error = renew::chapter(&book, chapter).unwrap_err().to_string();
        let place = format!("{chapter}.md:7: this cell fails");
        ensure!(
            error.starts_with(&place) && error.contains(message),
            "{error}"
        );
        ensure!(book.text(chapter)? == before, "{chapter} was written");
    }
    Ok(())
}

fn a_cell_that_does_not_end_is_ended() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let limit = Duration::from_secs(2);
    let error = run::run(super::PROGRAM.as_ref(), folder.path(), "hangs", limit).unwrap_err();
    let error = error.to_string();
    ensure!(
        error.starts_with("hangs.md:7: this cell was at work"),
        "{error}"
    );
    Ok(())
}
