//! The figures that no cell prints, drawn by code.

/// Every figure: its file in `img/`, and its SVG.
pub fn all() -> Vec<(&'static str, String)> {
    Vec::new()
}
