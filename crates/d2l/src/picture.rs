//! What all SVG pictures have in common.

/// Text as XML has it.
///
/// ```
/// assert_eq!(d2l::escape("a < b"), "a &lt; b");
/// ```
pub fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('"', "&quot;")
}
