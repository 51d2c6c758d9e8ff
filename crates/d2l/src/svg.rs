//! SVG pictures.

/// Makes a picture on white a dark one where the reader prefers dark pages; it stands before `</svg>`. Hues stay, and
/// what has the class `photo`.
pub const DARK_MODE: &str = "<style>@media (prefers-color-scheme: dark) { \
    svg { filter: invert(0.93) hue-rotate(180deg) } svg .photo { filter: invert(0.93) } }</style>";

/// Shows a picture below the cell that calls it: prints it so that evcxr, Rust's kernel for Jupyter, and
/// `crates/notebook` know it for one.
///
/// ```
/// d2l::display_svg(r#"<svg xmlns="http://www.w3.org/2000/svg" aria-label="Nothing"/>"#);
/// ```
pub fn display_svg(svg: &str) {
    println!(
        "EVCXR_BEGIN_CONTENT image/svg+xml\n{}\nEVCXR_END_CONTENT",
        svg.trim_end()
    );
}

/// Text as XML has it.
///
/// ```
/// assert_eq!(d2l::escape("a < b"), "a &lt; b");
/// ```
pub fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('"', "&quot;")
}
