//! The differences that a page shows are short.

use anyhow::Result;
use notebook::book::Book;
use notebook::chapter::Kind;

/// The most lines of code that a difference adds, without comments.
const MOST: usize = 30;

/// Differences that add more.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for name in book.chapters(None)? {
        for piece in book.chapter(&name)?.pieces {
            let Kind::Code {
                source: Some(source),
                ..
            } = &piece.kind
            else {
                continue;
            };
            if source.since.is_none() {
                continue;
            }
            let added = piece.body.lines().filter_map(|line| line.strip_prefix('+'));
            let code = added
                .map(str::trim)
                .filter(|line| !line.is_empty() && !line.starts_with("//"));
            let count = code.count();
            if count == 0 || count > MOST {
                complaints.push(format!(
                    "{name}.md:{}: the difference adds {count} lines",
                    piece.line
                ));
            }
        }
    }
    Ok(complaints)
}
