//! The sizes of buffers that are summed.

/// The elements of the gradients of LeNet and of ResNet-18.
pub(super) const LENET: usize = 129_068;
pub(super) const RESNET18: usize = 11_175_818;

/// The elements of a thread's buffer: 1 kB to 128 MB.
pub(super) const SIZES: [usize; 11] = [
    250, 1000, 4000, 16_000, 64_000, LENET, 250_000, 1_000_000, 4_000_000, RESNET18, 32_000_000,
];

/// Number of calls of an all-reduce of `len` elements: fewer where it takes long.
pub(super) fn calls(len: usize) -> usize {
    (1_000_000_000 / len).clamp(31, 1000)
}

/// The bytes of `len` elements; for the gradients of a network also its name.
pub(super) fn size(len: usize) -> String {
    let bytes = (len * size_of::<f32>()) as f64;
    match len {
        LENET => format!("{:.0} kB, LeNet", bytes / 1e3),
        RESNET18 => format!("{:.1} MB, ResNet-18", bytes / 1e6),
        _ if bytes < 1e6 => format!("{:.0} kB", bytes / 1e3),
        _ => format!("{:.0} MB", bytes / 1e6),
    }
}
