//! A list of times as a row of a table shows it.

use std::fmt;
use std::time::Instant;

/// The middle, the smallest and the largest of some numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Half of them are smaller.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The number of them.
    pub count: usize,
}

impl Summary {
    /// Of at least one number.
    pub fn of(numbers: &[f64]) -> Self {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        // of an even number, two are in the middle
        let middle = sorted[(count - 1) / 2] + sorted[count / 2];
        Self {
            median: middle / 2.0,
            min: sorted[0],
            max: sorted[count - 1],
            count,
        }
    }
}

/// `12.3 (12.1 – 15.0)`.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, min, max] = [self.median, self.min, self.max].map(short);
        write!(f, "{median} ({min} – {max})")
    }
}

/// The milliseconds that some work takes.
///
/// # Errors
/// If it fails.
pub fn milliseconds<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<f64, E> {
    let start = Instant::now();
    work()?;
    Ok(1e3 * start.elapsed().as_secs_f64())
}

/// A number with three digits that count.
pub fn short(x: f64) -> String {
    let digits = match x.abs() {
        x if x >= 99.95 => 0,
        x if x >= 9.995 => 1,
        _ => 2,
    };
    format!("{x:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_number_is_between_two() {
        let odd = Summary::of(&[3.0, 1.0, 2.0]);
        let found = (odd.min, odd.median, odd.max, odd.count);
        assert_eq!(found, (1.0, 2.0, 3.0, 3));
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Summary::of(&[7.0]).median, 7.0);
    }

    #[test]
    fn three_digits_count() {
        let shown = [1234.5, 123.4, 99.96, 12.34, 1.234, 0.123].map(short);
        assert_eq!(shown, ["1234", "123", "100", "12.3", "1.23", "0.12"]);
    }
}
