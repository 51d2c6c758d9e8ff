//! The differences that a page shows are short.

use anyhow::Result;
use notebook::book::Book;

/// The most lines of code that a difference adds, without comments.
const MOST: usize = 30;

/// Differences that add more.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for name in book.chapters(None)? {
        for piece in book.chapter(&name)?.pieces {
            if piece.source().is_none_or(|source| source.since.is_none()) {
                continue;
            }
            let added = piece.body.lines().filter_map(|line| line.strip_prefix('+'));
            let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
            let count = added.map(str::trim).filter(is_code).count();
            if count == 0 || count > MOST {
                let place = format!("{name}.md:{}", piece.line);
                complaints.push(format!("{place}: the difference adds {count} lines"));
            }
        }
    }
    Ok(complaints)
}
