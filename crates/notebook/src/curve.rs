//! The picture that shows recorded runs and no cell prints: ResNet-18's test accuracy in the book's two runs.

use anyhow::Result;

use crate::book::Book;
use crate::epochs::Epochs;

/// The file of the picture.
pub const FILE: &str = "img/resnet18-curve.svg";

/// The picture: a curve for `concise --gpus 1`, and one for `concise --gpus 2`.
///
/// # Errors
/// If one of them is not recorded.
pub fn svg(book: &Book) -> Result<String> {
    let recorded = book.recorded()?;
    let one = Epochs::of_command(&recorded, "concise --gpus 1")?;
    let two = Epochs::of_command(&recorded, "concise --gpus 2")?;
    let last = one.accuracies.len() as f64;
    let legend = ["1 device, 256, lr 0.1", "2 devices, 512, lr 0.2"];
    let mut animator = d2l::Animator::new("epoch", &legend, (1.0, last)).ylabel("test accuracy");
    let both = one.accuracies.iter().zip(&two.accuracies);
    for (epoch, (&one, &two)) in (1..).zip(both) {
        animator.add(f64::from(epoch), &[one, two])?;
    }
    animator.svg()
}
