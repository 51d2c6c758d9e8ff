//! The check of an answer: a sentence that says what is wrong, or nothing.

use std::io::Write;
use std::sync::Mutex;

use anyhow::{Result, bail, ensure};
use candle_core::Tensor;
use devices::{catch_panic, lock, without_backtrace};

/// A check: an error says in a sentence what is wrong with the answer.
pub type Check = fn() -> Result<()>;

/// Runs a check. What panics in the answer becomes a sentence too.
///
/// # Errors
/// If the answer is wrong.
pub fn judge(check: Check) -> Result<()> {
    static PLACE: Mutex<String> = Mutex::new(String::new());
    lock(&PLACE).clear();
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location();
        let line = place.map(|place| format!(" ({}:{})", place.file(), place.line()));
        *lock(&PLACE) = line.unwrap_or_default();
    }));
    let wrong = match catch_panic(check) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => match error.downcast::<candle_core::Error>() {
            // without candle's backtrace, which would hide the sentence; a replica makes an error of a panic
            Ok(error) => {
                let error = without_backtrace(error);
                format!("Your code returns an error: {error}{}", lock(&PLACE))
            }
            Err(sentence) => format!("{sentence:#}"),
        },
        Err(panic) => format!("Your code stops: {panic}{}", lock(&PLACE)),
    };
    if let Some((_, to_do)) = wrong.split_once("not yet implemented: ") {
        let to_do = to_do.split(" (").next().unwrap_or(to_do);
        bail!("Still to do: {to_do}.");
    }
    bail!(wrong)
}

/// Stands before the verdict, after all that an answer prints.
pub(crate) const VERDICT: &str = "\n-- verdict --\n";

/// Prints what is wrong, or nothing, after all that the answer has printed.
pub fn print_verdict(verdict: Result<()>) {
    let wrong = verdict.err().map(|wrong| format!("{wrong:#}"));
    let _ = write!(std::io::stdout(), "{VERDICT}{}", wrong.unwrap_or_default());
}

/// Compares a tensor of the answer with the right one, up to rounding.
///
/// # Errors
/// If they differ. The message shows the first elements that differ.
pub fn same(what: &str, yours: &Tensor, right: &Tensor) -> Result<()> {
    let dims = yours.dims();
    let expected = right.dims();
    let wrong = format!("{what} has the shape {dims:?}, but should have {expected:?}.");
    ensure!(dims == expected, wrong);
    let values = |tensor: &Tensor| {
        tensor
            .to_dtype(candle_core::DType::F64)?
            .flatten_all()?
            .to_vec1::<f64>()
    };
    let yours = values(yours)?;
    let right = values(right)?;
    let largest = right.iter().fold(0f64, |a, b| a.max(b.abs()));
    let most = 1e-4 * largest.max(1e-6);
    // NaN differs
    let differs = |i: &usize| (yours[*i] - right[*i]).abs().total_cmp(&most).is_gt();
    let Some(first) = (0..right.len()).find(differs) else {
        return Ok(());
    };
    let shown = |all: &[f64]| {
        let some = all[first..].iter().take(4).map(|x| format!("{x:.4}"));
        some.collect::<Vec<_>>().join(", ")
    };
    let yours = shown(&yours);
    let right = shown(&right);
    bail!("{what} is wrong from element {first} on.\n  yours: {yours}\n  right: {right}")
}
