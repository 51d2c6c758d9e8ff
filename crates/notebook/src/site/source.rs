//! Pages of the site that show a file of the repository, with lines that can be linked to.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The Markdown of a page that shows a file, or what is in a folder.
///
/// # Errors
/// If it cannot be read.
pub fn page(root: &Path, file: &Path) -> Result<String> {
    let path = root.join(file);
    let name = file.display();
    if path.is_dir() {
        return folder(&path, file);
    }
    let text = fs::read_to_string(&path).with_context(|| name.to_string())?;
    let mut page = format!("# {name}\n\n<div class=\"source\">\n<div class=\"lines\">\n");
    for line in 1..=text.lines().count() {
        writeln!(page, "<a id=\"L{line}\" href=\"#L{line}\">{line}</a>")?;
    }
    let fence = "`".repeat(longest_fence(&text).max(2) + 1);
    let language = language(file);
    writeln!(
        page,
        "</div>\n\n{fence}{language}\n{}\n{fence}\n\n</div>",
        text.trim_end()
    )?;
    Ok(page)
}

/// The names of what is in it; they lead no further, or the site would become the whole repository.
fn folder(path: &Path, file: &Path) -> Result<String> {
    let entries: Result<Vec<_>, _> = fs::read_dir(path)?.collect();
    let names = entries?.into_iter().map(|entry| entry.file_name());
    let mut names: Vec<String> = names
        .map(|name| format!("- `{}`\n", name.display()))
        .collect();
    names.sort();
    Ok(format!("# {}\n\n{}", file.display(), names.concat()))
}

/// Not `rust`: mdBook would put a hidden `main` around it.
fn language(file: &Path) -> &str {
    match file.extension().and_then(|e| e.to_str()) {
        Some("rs") => "rs",
        Some("toml") => "toml",
        Some("sh") => "bash",
        Some("py") => "python",
        _ => "text",
    }
}

fn longest_fence(text: &str) -> usize {
    let runs = text.split(|c| c != '`').map(str::len);
    runs.max().unwrap_or(0)
}
