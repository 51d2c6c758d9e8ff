//! Pages of the site that show a file of the repository, with lines that can be linked to.

use std::fs;
use std::path::Path;

use anyhow::Result;

/// The Markdown of a page that shows a file.
pub fn page(file: &Path, text: &str) -> String {
    let numbers = 1..=text.lines().count();
    let numbers: String = numbers
        .map(|n| format!("<a id=\"L{n}\" href=\"#L{n}\">{n}</a>\n"))
        .collect();
    // `rs`, not `rust`: mdBook would put a hidden `main` around it
    let language = file.extension().and_then(|e| e.to_str()).unwrap_or("text");
    let fence = "`".repeat(20); // longer than any in a file
    format!(
        "# {}\n\n<div class=\"source\">\n<div class=\"lines\">\n{numbers}</div>\n\n\
         {fence}{language}\n{}\n{fence}\n\n</div>\n",
        file.display(),
        text.trim_end()
    )
}

/// The names of what is in a folder; they lead no further, or the site would become the whole repository.
///
/// # Errors
/// If it cannot be read.
pub fn folder(path: &Path, file: &Path) -> Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(format!("- `{}`\n", entry?.file_name().display()));
    }
    names.sort();
    Ok(format!("# {}\n\n{}", file.display(), names.concat()))
}
