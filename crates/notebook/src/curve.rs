//! The picture that shows recorded runs and no cell prints: ResNet-18's test accuracy in the book's two runs, and in one
//! between them. It has the first one's device, and the second one's minibatch and learning rate.

use anyhow::{Result, ensure};

use crate::book::Book;
use crate::epochs::Epochs;

/// The file of the picture.
pub const FILE: &str = "img/resnet18-curve.svg";

/// The recorded commands, and the names of their curves: devices, minibatch, learning rate.
const RUNS: [(&str, &str); 3] = [
    ("concise --gpus 1", "1 device, 256, rate 0.1"),
    (
        "concise --gpus 1 --batch-size 512 --lr 0.2",
        "1 device, 512, rate 0.2",
    ),
    ("concise --gpus 2", "2 devices, 512, rate 0.2"),
];

/// The picture: a curve for each of the runs.
///
/// # Errors
/// If one of them is not recorded, or has another number of epochs.
pub fn svg(book: &Book) -> Result<String> {
    let recorded = book.recorded()?;
    let mut curves = Vec::new();
    for (command, _) in RUNS {
        curves.push(Epochs::of_command(&recorded, command)?.accuracies);
    }
    let epochs = curves[0].len();
    for ((command, _), curve) in RUNS.iter().zip(&curves) {
        let other = curve.len();
        ensure!(other == epochs, "{command}: {other} epochs, not {epochs}");
    }
    let legend = RUNS.map(|(_, name)| name);
    let mut animator =
        d2l::Animator::new("epoch", &legend, (1.0, epochs as f64)).ylabel("test accuracy");
    for epoch in 0..epochs {
        let accuracies: Vec<f64> = curves.iter().map(|curve| curve[epoch]).collect();
        animator.add(epoch as f64 + 1.0, &accuracies)?;
    }
    animator.svg()
}
