//! What a message quotes of a file, which may have anything.

/// The text between quotation marks, its first 80 characters at most.
pub(crate) fn quote(text: &str) -> String {
    match text.char_indices().nth(80) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?} …", &text[..end]),
    }
}
