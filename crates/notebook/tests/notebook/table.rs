//! Checks that `notebooks-md/README.md` links each name of the book to its code, and names every chapter and
//! example. Checks that the table of contents, which mdBook and the build script use, has every chapter.

use std::fs;

use anyhow::{Context, Result};
use notebook::book::Book;
use notebook::links;

/// The functions and classes of both sections, and those saved in the book that they use. The library's name for the book's
/// `evaluate_accuracy_gpus` is shorter: it also runs on CPUs.
const NAMES: &str = "lenet loss get_params allreduce split_batch train_batch train resnet18 Residual \
    evaluate_accuracy try_gpu try_all_gpus Timer Accumulator Animator accuracy sgd load_data_fashion_mnist";

/// Names of the book that are not linked to their line, chapters and examples that are not named.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let text = book.text("README")?;
    let links = links::of(&text).into_iter();
    let links = links.filter(|link| link.line_of_code().is_some());
    let items: Vec<String> = links.filter_map(|link| link.item).collect();
    let linked = items.iter().filter_map(|item| item.rsplit("::").next());
    let linked: Vec<&str> = linked.collect();
    let mut complaints = Vec::new();
    for name in NAMES.split_whitespace() {
        if !linked.contains(&name) {
            let what = format!("links no `{name}` to its file and line");
            complaints.push(format!("notebooks-md/README.md {what}"));
        }
    }
    let contents = book.text("SUMMARY")?;
    let mut names = examples(book)?;
    for name in book.chapters(None)? {
        if !contents.contains(&format!("({name}.md)")) {
            complaints.push(format!("notebooks-md/SUMMARY.md has no {name}.md"));
        }
        names.push(format!("{name}.md"));
    }
    for name in names.iter().filter(|name| !text.contains(*name)) {
        complaints.push(format!("notebooks-md/README.md does not name {name}"));
    }
    Ok(complaints)
}

/// The examples' names.
fn examples(book: &Book) -> Result<Vec<String>> {
    let folder = book.root.join("examples");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    Ok(names)
}
