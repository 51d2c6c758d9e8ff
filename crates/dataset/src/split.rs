//! One part of a dataset as bytes, and the way from bytes to tensors. Knows no file and no order.

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};
use training::Examples;

/// Height and width of an image, in pixels.
pub const SIDE: usize = 28;
/// Bytes of an image, row by row.
pub const PIXELS: usize = SIDE * SIDE;
/// Training and test images of the full datasets.
pub(crate) const COUNTS: [usize; 2] = [60_000, 10_000];

/// Images and their labels, one byte a pixel and one byte a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    images: Vec<u8>,
    labels: Vec<u8>,
}

impl Split {
    /// A split of n × 784 bytes of images and n labels 0 … 9.
    ///
    /// # Errors
    /// No image, an image too many or too few, or a label above 9.
    ///
    /// ```
    /// let split = dataset::Split::new(vec![0; 2 * 784], vec![3, 1])?;
    /// assert_eq!(split.label(0), 3);
    /// let error = dataset::Split::new(vec![0; 784], vec![3, 1]).unwrap_err();
    /// assert_eq!(error.to_string(), "784 bytes of images for 2 labels; expected 1568, 28×28 for each");
    /// # anyhow::Ok(())
    /// ```
    pub fn new(images: Vec<u8>, labels: Vec<u8>) -> Result<Self> {
        let bytes = images.len();
        let n = labels.len();
        ensure!(
            bytes == n * PIXELS,
            "{bytes} bytes of images for {n} labels; expected {}, 28×28 for each",
            n * PIXELS
        );
        ensure!(n > 0, "no images; expected at least 1");
        if let Some(i) = labels.iter().position(|&label| label > 9) {
            anyhow::bail!("label {} at index {i}; expected 0 to 9", labels[i]);
        }
        Ok(Split { images, labels })
    }

    /// Number of images; never 0.
    #[expect(clippy::len_without_is_empty, reason = "a split is never empty")]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// The 784 bytes of image `i`, row by row; 0 is the background.
    ///
    /// # Panics
    /// Where there is no image `i`.
    pub fn image(&self, i: usize) -> &[u8] {
        &self.images[i * PIXELS..][..PIXELS]
    }

    /// The label of image `i`, 0 to 9.
    ///
    /// # Panics
    /// Where there is no image `i`.
    pub fn label(&self, i: usize) -> u8 {
        self.labels[i]
    }

    /// A checksum (CRC-32) of images and labels: two that differ are of different splits.
    ///
    /// ```
    /// let split = |label| dataset::Split::new(vec![0; 784], vec![label]);
    /// assert_ne!(split(3)?.checksum(), split(4)?.checksum());
    /// # anyhow::Ok(())
    /// ```
    pub fn checksum(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        sum.update(&self.images);
        sum.update(&self.labels);
        sum.finalize()
    }

    pub(crate) fn truncate(&mut self, n: usize) {
        let n = n.min(self.len());
        self.images.truncate(n * PIXELS);
        self.labels.truncate(n);
    }
}

impl Examples for Split {
    fn num_examples(&self) -> usize {
        self.len()
    }

    /// X (B, 1, 28, 28) in [0, 1] and y (B,), for the images with these numbers.
    fn minibatch(&self, numbers: &[u32], _: usize) -> candle_core::Result<(Tensor, Tensor)> {
        let mut x = Vec::with_capacity(numbers.len() * PIXELS);
        for &i in numbers {
            let pixels = self.image(i as usize).iter();
            x.extend(pixels.map(|&byte| f32::from(byte) / 255.0));
        }
        let x = Tensor::from_vec(x, (numbers.len(), 1, SIDE, SIDE), &Device::Cpu)?;
        let y = numbers.iter().map(|&i| u32::from(self.label(i as usize)));
        Ok((x, Tensor::from_iter(y, &Device::Cpu)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minibatch_is_bytes_over_255() {
        let images = (0..2 * PIXELS).map(|i| (i % 256) as u8).collect();
        let split = Split::new(images, vec![7, 2]).unwrap();
        let (x, y) = split.minibatch(&[1, 0], 1).unwrap();
        assert_eq!(x.dims(), [2, 1, 28, 28]);
        assert_eq!(y.to_vec1::<u32>().unwrap(), [2, 7]);
        let x = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (i, value) in x.iter().enumerate() {
            let byte = split.image(1 - i / PIXELS)[i % PIXELS];
            assert_eq!(*value, f32::from(byte) / 255.0);
        }
    }

    #[test]
    fn malformed_parts_are_refused() {
        let error = |images, labels| Split::new(images, labels).unwrap_err().to_string();
        assert_eq!(error(vec![], vec![]), "no images; expected at least 1");
        let says = "label 10 at index 1; expected 0 to 9";
        assert_eq!(error(vec![0; 2 * PIXELS], vec![0, 10]), says);
        assert!(error(vec![0; 3], vec![0]).starts_with("3 bytes of images for 1 labels"));
    }

    #[test]
    fn truncating_keeps_the_first_images() {
        let images = |n: u8| (0..n).flat_map(|i| [i; PIXELS]).collect();
        let mut split = Split::new(images(3), vec![5, 6, 7]).unwrap();
        split.truncate(9);
        assert_eq!(split.len(), 3);
        split.truncate(2);
        assert_eq!(split, Split::new(images(2), vec![5, 6]).unwrap());
    }
}
