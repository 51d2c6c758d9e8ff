//! What the chapters of the tests list.

/// A circle.
#[derive(Debug)]
struct Circle {
    radius: f64,
}

impl Circle {
    /// Its area.
    fn area(&self) -> f64 {
        std::f64::consts::PI * self.radius.powi(2)
    }
}
