//! SVG pictures.

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
