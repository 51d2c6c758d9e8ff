//! Pooling on the CPU, sample by sample. It knows square kernels and no padding; rows and columns
//! that no whole window covers are left out, and get no gradient.

use crate::storage::{read, slice, tensor};
use crate::threads::for_each_chunk;
use crate::{args, plain};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};
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
    if !x.device().is_cpu() {
        return plain::avg_pool2d(x, kernel, stride);
    }
    let (x, windows) = Windows::new("avg_pool2d", x, kernel, stride)?;
    x.contiguous()?.apply_op1(Average(windows))
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
    if !x.device().is_cpu() {
        return plain::max_pool2d(x, kernel, stride);
    }
    let (x, windows) = Windows::new("max_pool2d", x, kernel, stride)?;
    x.contiguous()?.apply_op1(Maximum(windows))
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
    if !x.device().is_cpu() {
        return plain::global_avg_pool2d(x);
    }
    let (x, [_, h, w, channels]) = whole_image(x)?;
    x.contiguous()?.apply_op1(GlobalAverage {
        pixels: h * w,
        channels,
    })
}

/// What [`global_avg_pool2d`] and its plain twin were given, checked, and its sizes.
pub(crate) fn whole_image(x: &Tensor) -> Result<(Tensor, [usize; 4])> {
    let x = args::float("global_avg_pool2d", "x", x)?;
    let dims = args::dims4("global_avg_pool2d", "(B, H, W, C)", &x)?;
    if dims[1] * dims[2] == 0 {
        bail!("global_avg_pool2d: x has shape {dims:?}, expected at least one pixel")
    }
    Ok((x, dims))
}

/// The windows of one pooling.
#[derive(Clone, Copy)]
pub(crate) struct Windows {
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) out_height: usize,
    pub(crate) out_width: usize,
    batch: usize,
    height: usize,
    width: usize,
    channels: usize,
}

impl Windows {
    /// What the operation `op` and its plain twin were given, checked.
    pub(crate) fn new(
        op: &str,
        x: &Tensor,
        kernel: usize,
        stride: usize,
    ) -> Result<(Tensor, Self)> {
        let x = args::float(op, "x", x)?;
        let [batch, height, width, channels] = args::dims4(op, "(B, H, W, C)", &x)?;
        let windows = Self {
            kernel,
            stride,
            out_height: args::windows(op, height, kernel, stride, 0)?,
            out_width: args::windows(op, width, kernel, stride, 0)?,
            batch,
            height,
            width,
            channels,
        };
        Ok((x, windows))
    }

    fn sample(&self) -> usize {
        self.height * self.width * self.channels
    }

    fn out_sample(&self) -> usize {
        self.out_height * self.out_width * self.channels
    }

    fn shape(&self) -> Shape {
        (self.batch, self.out_height, self.out_width, self.channels).into()
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
    fn forward(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        f: impl Fn(&[f32], &mut [f32]) + Sync,
    ) -> Result<(CpuStorage, Shape)> {
        let x = slice(x, layout)?;
        let mut y = vec![0.; self.batch * self.out_sample()];
        for_each_chunk(&mut y, self.out_sample(), |i, y| {
            f(&x[i * self.sample()..][..self.sample()], y)
        });
        Ok((CpuStorage::F32(y), self.shape()))
    }
}

struct Average(Windows);

impl CustomOp1 for Average {
    fn name(&self) -> &'static str {
        "avg-pool2d"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let w = &self.0;
        let share = 1. / (w.kernel * w.kernel) as f32;
        w.forward(x, layout, |x, y| {
            w.for_each_pixel(|o, i| add_scaled(&mut y[o..][..w.channels], &x[i..], share));
        })
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let w = &self.0;
        let share = 1. / (w.kernel * w.kernel) as f32;
        let dx = read([dy], |[dy]| {
            let mut dx = vec![0.; w.batch * w.sample()];
            for_each_chunk(&mut dx, w.sample(), |i, dx| {
                let dy = &dy[i * w.out_sample()..];
                w.for_each_pixel(|o, i| add_scaled(&mut dx[i..][..w.channels], &dy[o..], share));
            });
            dx
        })?;
        tensor(dx, x.shape()).map(Some)
    }
}

fn add_scaled(to: &mut [f32], from: &[f32], scale: f32) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += scale * from;
    }
}

struct Maximum(Windows);

impl CustomOp1 for Maximum {
    fn name(&self) -> &'static str {
        "max-pool2d"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let w = &self.0;
        w.forward(x, layout, |x, y| {
            y.fill(f32::NEG_INFINITY);
            w.for_each_pixel(|o, i| {
                for (y, x) in y[o..][..w.channels].iter_mut().zip(&x[i..]) {
                    // NaN wins and stays, so that a diverged run shows
                    if *x > *y || x.is_nan() {
                        *y = *x;
                    }
                }
            });
        })
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let w = &self.0;
        let dx = read([x, y, dy], |[x, y, dy]| {
            let mut dx = vec![0.; x.len()];
            for_each_chunk(&mut dx, w.sample(), |i, dx| {
                let o = i * w.out_sample();
                w.maximum_backward(&x[i * w.sample()..], &y[o..], &dy[o..], dx);
            });
            dx
        })?;
        tensor(dx, x.shape()).map(Some)
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

struct GlobalAverage {
    pixels: usize,
    channels: usize,
}

impl CustomOp1 for GlobalAverage {
    fn name(&self) -> &'static str {
        "global-avg-pool2d"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = slice(x, layout)?;
        let (batch, c) = (layout.dims()[0], self.channels);
        let mut y = vec![0.; batch * c];
        for_each_chunk(&mut y, c, |i, y| {
            for pixel in x[i * self.pixels * c..][..self.pixels * c].chunks_exact(c) {
                add_scaled(y, pixel, 1.);
            }
            y.iter_mut().for_each(|y| *y /= self.pixels as f32);
        });
        Ok((CpuStorage::F32(y), (batch, c).into()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let c = self.channels;
        let dx = read([dy], |[dy]| {
            let mut dx = vec![0.; x.elem_count()];
            for_each_chunk(&mut dx, self.pixels * c, |i, dx| {
                for pixel in dx.chunks_exact_mut(c) {
                    add_scaled(pixel, &dy[i * c..][..c], 1. / self.pixels as f32);
                }
            });
            dx
        })?;
        tensor(dx, x.shape()).map(Some)
    }
}
