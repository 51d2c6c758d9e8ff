//! The errors of a checkpoint of another run.

use std::path::Path;

use devices::wrap;
use training::CheckpointError;

/// The file of the best parameters, for [`DataParallel::load`](crate::DataParallel::load), PyTorch and candle's `VarMap`.
pub(super) const BEST: &str = "best.safetensors";
/// They have this name until a checkpoint knows them.
pub(super) const NEXT_BEST: &str = "best.next.safetensors";

/// The error of a checkpoint of another run.
pub(super) fn another_run(path: &Path, why: &candle_core::Error) -> candle_core::Error {
    let path = path.display();
    let text = format!("{path} holds another run: {why}; open another folder");
    wrap(CheckpointError::OtherRun(text))
}

/// The error of a checkpoint of a run with another setting.
pub(super) fn other_settings(path: &Path, this: &str, other: &str) -> candle_core::Error {
    let advice = if other.starts_with("replicas ") {
        format!(
            ", and each minibatch is split over the replicas; open another folder, and begin with its parameters: \
             net.load({:?})",
            path.join(BEST)
        )
    } else if other.starts_with("schedule") {
        ". A schedule that ends with the run changes with the number of epochs: give it the length that it had, or open \
         another folder"
            .to_owned()
    } else {
        "; open another folder".to_owned()
    };
    let path = path.display();
    let text = format!("{path} holds another run: it has {other:?}, this one {this:?}{advice}");
    wrap(CheckpointError::OtherRun(text))
}

/// The error of other data than that of the run.
pub(super) fn other_data(path: &Path, this: &str, other: &str) -> candle_core::Error {
    let path = path.display();
    let text = format!(
        "the data of the run in {path} has {other:?}, this one {this:?}; open another folder for another run"
    );
    wrap(CheckpointError::OtherRun(text))
}
