//! Pooling on the CPU, sample by sample. It knows square kernels and no padding; rows and columns
//! that no whole window covers are left out, and get no gradient.

use crate::buffer::Buffer;
use crate::operation::{At, Grad, Operation, put};
use crate::threads::for_each_chunk;
use crate::{Expr, args};
use candle_core::{Result, Tensor, bail};
use std::cmp::Ordering;

/// The mean of each `kernel` × `kernel` window, in steps of `stride`:
/// (B, H, W, C) → (B, OH, OW, C), with OH = ⌊(H − kernel) / stride⌋ + 1, and OW likewise.
///
/// The gradient is right where the windows do not cover the border, as in the book's LeNet, which
/// pools 9×9 to 4×4. In the book: `F.avg_pool2d(h, kernel_size=(2, 2), stride=(2, 2))`.
///
/// # Errors
/// Where `x` is not f32 or not 4-d, or the kernel does not fit.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::arange(0f32, 9., &Device::Cpu)?.reshape((1, 3, 3, 1))?;
/// // the third row and column are left out
/// let y = functional::avg_pool2d(&x, 2, 2)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [2.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn avg_pool2d(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    Expr::new(x).avg_pool2d(kernel, stride).eval()
}

/// The largest value of each `kernel` × `kernel` window, in steps of `stride`: sizes as in
/// [`avg_pool2d`].
///
/// Where several values of a window are the largest, the first gets the gradient, as in PyTorch.
///
/// # Errors
/// Where `x` is not f32 or not 4-d, or the kernel does not fit.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::arange(0f32, 9., &Device::Cpu)?.reshape((1, 3, 3, 1))?;
/// let y = functional::max_pool2d(&x, 2, 1)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [4., 5., 7., 8.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn max_pool2d(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    Expr::new(x).max_pool2d(kernel, stride).eval()
}

/// The mean of each channel over the whole image: (B, H, W, C) → (B, C). In the book:
/// `nn.AdaptiveAvgPool2d((1, 1))` and the flattening after it.
///
/// # Errors
/// Where `x` is not f32 or not 4-d, or has no pixel.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::arange(0f32, 8., &Device::Cpu)?.reshape((1, 2, 2, 2))?;
/// assert_eq!(functional::global_avg_pool2d(&x)?.to_vec2::<f32>()?, [[3., 4.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn global_avg_pool2d(x: &Tensor) -> Result<Tensor> {
    Expr::new(x).global_avg_pool2d().eval()
}

/// Checks what [`global_avg_pool2d`] and its plain twin were given, and returns its sizes.
pub(crate) fn whole_image(x: &[usize]) -> Result<[usize; 4]> {
    let dims = args::dims4("global_avg_pool2d", "(B, H, W, C)", x)?;
    if dims[1] * dims[2] == 0 {
        bail!("global_avg_pool2d: x has shape {dims:?}, expected at least one pixel")
    }
    Ok(dims)
}

/// The windows of one pooling.
#[derive(Clone, Copy)]
pub(crate) struct Windows {
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) out_height: usize,
    pub(crate) out_width: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    batch: usize,
}

impl Windows {
    /// The windows of operation `op` on x (B, H, W, C).
    pub(crate) fn new(op: &str, x: &[usize], kernel: usize, stride: usize) -> Result<Self> {
        let [batch, height, width, channels] = args::dims4(op, "(B, H, W, C)", x)?;
        Ok(Self {
            kernel,
            stride,
            out_height: args::windows(op, height, kernel, stride, 0)?,
            out_width: args::windows(op, width, kernel, stride, 0)?,
            batch,
            height,
            width,
            channels,
        })
    }

    /// The shape of the result.
    pub(crate) fn dims(&self) -> [usize; 4] {
        [self.batch, self.out_height, self.out_width, self.channels]
    }

    fn sample(&self) -> usize {
        self.height * self.width * self.channels
    }

    fn out_sample(&self) -> usize {
        self.out_height * self.out_width * self.channels
    }

    /// Calls `f(o, i)` for each window and each of its pixels, a row of all windows at a time:
    /// the starts of the window's pixel in a sample of y and of the other pixel in a sample of x.
    fn for_each_pixel(&self, mut f: impl FnMut(usize, usize)) {
        let c = self.channels;
        for oy in 0..self.out_height {
            for ky in 0..self.kernel {
                let row = (oy * self.stride + ky) * self.width;
                for ox in 0..self.out_width {
                    let first = row + ox * self.stride;
                    for pixel in first..first + self.kernel {
                        f((oy * self.out_width + ox) * c, pixel * c);
                    }
                }
            }
        }
    }

    /// y from x, `f` computing a sample of it from a sample of x.
    fn forward(&self, x: &[f32], y: &mut [f32], f: impl Fn(&[f32], &mut [f32]) + Sync) {
        for_each_chunk(y, self.out_sample(), |i, y| {
            f(&x[i * self.sample()..][..self.sample()], y)
        });
    }

    /// The gradient of x, `f(i, dx)` adding to that of sample i.
    fn backward(&self, dx: &mut Grad<'_>, f: impl Fn(usize, &mut [f32]) + Sync) {
        if dx.wanted() {
            let (to, add) = dx.target();
            for_each_chunk(to, self.sample(), |i, to| {
                if !add {
                    to.fill(0.);
                }
                f(i, to);
            });
        }
    }
}

pub(crate) struct Average(pub Windows);

impl Operation for Average {
    fn forward(&self, x: &[&[f32]], y: &mut [f32], _keep: bool) -> Result<Vec<Buffer>> {
        let w = &self.0;
        let share = 1. / (w.kernel * w.kernel) as f32;
        w.forward(x[0], y, |x, y| {
            y.fill(0.);
            w.for_each_pixel(|o, i| add_scaled(&mut y[o..][..w.channels], &x[i..], share));
        });
        Ok(vec![])
    }

    fn backward(&self, _at: At<'_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        let w = &self.0;
        let share = 1. / (w.kernel * w.kernel) as f32;
        w.backward(&mut dx[0], |i, dx| {
            let dy = &dy[i * w.out_sample()..];
            w.for_each_pixel(|o, i| add_scaled(&mut dx[i..][..w.channels], &dy[o..], share));
        });
        Ok(())
    }
}

#[inline(always)]
fn add_scaled(to: &mut [f32], from: &[f32], scale: f32) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += scale * from;
    }
}

pub(crate) struct Maximum(pub Windows);

impl Operation for Maximum {
    fn forward(&self, x: &[&[f32]], y: &mut [f32], _keep: bool) -> Result<Vec<Buffer>> {
        let w = &self.0;
        w.forward(x[0], y, |x, y| {
            y.fill(f32::NEG_INFINITY);
            w.for_each_pixel(|o, i| {
                for (y, x) in y[o..][..w.channels].iter_mut().zip(&x[i..]) {
                    // NaN wins and stays, so that a diverged run shows
                    if *x > *y || x.is_nan() {
                        *y = *x;
                    }
                }
            });
        });
        Ok(vec![])
    }

    fn backward(&self, at: At<'_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        let w = &self.0;
        w.backward(&mut dx[0], |i, dx| {
            let o = i * w.out_sample();
            w.maximum_backward(&at.x[0][i * w.sample()..], &at.y[o..], &dy[o..], dx);
        });
        Ok(())
    }
}

impl Windows {
    /// Gives each window's gradient to the first pixel that is its maximum.
    fn maximum_backward(&self, x: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]) {
        let mut given = vec![false; self.out_sample()];
        self.for_each_pixel(|o, i| {
            for c in 0..self.channels {
                let is_maximum = x[i + c].partial_cmp(&y[o + c]) != Some(Ordering::Less);
                if is_maximum && !given[o + c] {
                    given[o + c] = true;
                    dx[i + c] += dy[o + c];
                }
            }
        });
    }
}

pub(crate) struct GlobalAverage {
    pub(crate) pixels: usize,
    pub(crate) channels: usize,
}

impl GlobalAverage {
    pub(crate) fn new(x: &[usize]) -> Result<Self> {
        let [_, h, w, channels] = whole_image(x)?;
        Ok(Self {
            pixels: h * w,
            channels,
        })
    }
}

impl Operation for GlobalAverage {
    fn forward(&self, x: &[&[f32]], y: &mut [f32], _keep: bool) -> Result<Vec<Buffer>> {
        let c = self.channels;
        for_each_chunk(y, c, |i, y| {
            y.fill(0.);
            for pixel in x[0][i * self.pixels * c..][..self.pixels * c].chunks_exact(c) {
                add_scaled(y, pixel, 1.);
            }
            y.iter_mut().for_each(|y| *y /= self.pixels as f32);
        });
        Ok(vec![])
    }

    fn backward(&self, _at: At<'_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        if dx[0].wanted() {
            let (to, add) = dx[0].target();
            let (c, share) = (self.channels, 1. / self.pixels as f32);
            for_each_chunk(to, self.pixels * c, |i, to| {
                for pixel in to.chunks_exact_mut(c.max(1)) {
                    put(pixel, dy[i * c..][..c].iter().map(|v| v * share), add);
                }
            });
        }
        Ok(())
    }
}
