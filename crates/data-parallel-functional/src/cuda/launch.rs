//! Launches of our kernels: their arguments, and blocks of threads.

use super::floats::{Element, Floats, Kernel};
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{Result, bail};

/// Threads of a block, except where a kernel sums rows of 32.
pub(crate) const THREADS: u32 = 256;

/// The configuration with which [`launch!`] launches a kernel for `n` elements, at least one.
pub(crate) fn elements(n: usize) -> Result<LaunchConfig> {
    match u32::try_from(n) {
        Ok(n) => Ok(LaunchConfig {
            grid_dim: (n.div_ceil(THREADS), 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        }),
        Err(_) => bail!("{n} elements are too many for one kernel; make the batch smaller"),
    }
}

/// The configuration, if a GPU can launch it. The first number of the grid may be 2³¹ − 1, and no kernel uses the third.
pub(crate) fn fits(config: LaunchConfig) -> Result<LaunchConfig> {
    match config.grid_dim.1 {
        0..=65_535 => Ok(config),
        _ => bail!(
            "too many tensors, or too large a bucket, for one kernel; make the buckets smaller"
        ),
    }
}

/// One of three kernels, which keep the type, make bf16 of f32, and f32 of bf16.
pub(crate) fn between(from: Floats, to: Floats, names: [&'static str; 3]) -> Kernel {
    let [keeps, narrows, widens] = names;
    match (from.element, to.element) {
        (Element::F32, Element::Bf16) => to.kernel(narrows),
        (Element::Bf16, Element::F32) => from.kernel(widens),
        _ => to.kernel(keeps),
    }
}

/// An argument of a kernel: a number of 32 bits, an address, or a struct with the same layout in both languages.
pub(crate) trait Argument {
    type Raw: DeviceRepr;

    fn raw(&self) -> Result<Self::Raw>;
}

/// A table of addresses and sizes for a kernel, with `N` numbers for each entry. Blocks side by side take one entry, those
/// behind each other the others.
pub(crate) struct Table<const N: usize> {
    pub numbers: Vec<u64>,
    /// The threads of the largest entry.
    threads: usize,
}

impl<const N: usize> Table<N> {
    pub fn new() -> Self {
        Self {
            numbers: Vec::new(),
            threads: 0,
        }
    }

    /// Adds an entry for `threads` threads.
    pub fn push(&mut self, entry: [u64; N], threads: usize) {
        self.numbers.extend(entry);
        self.threads = self.threads.max(threads);
    }

    /// The blocks; none where no thread has work.
    pub fn grid(&self) -> Option<(u32, u32, u32)> {
        let blocks = self.threads.div_ceil(THREADS as usize);
        let entries = self.numbers.len() / N;
        (blocks > 0).then_some((blocks as u32, entries as u32, 1))
    }
}

/// The address of something else than floats.
pub(crate) struct Address(pub u64);

impl Argument for Address {
    type Raw = u64;

    fn raw(&self) -> Result<u64> {
        Ok(self.0)
    }
}

impl Argument for Floats {
    type Raw = u64;

    fn raw(&self) -> Result<u64> {
        Ok(self.address)
    }
}

impl Argument for Option<Floats> {
    type Raw = u64;

    fn raw(&self) -> Result<u64> {
        Ok(self.map_or(0, |floats| floats.address))
    }
}

impl Argument for usize {
    type Raw = i32;

    fn raw(&self) -> Result<i32> {
        match i32::try_from(*self) {
            Ok(n) => Ok(n),
            Err(_) => bail!("a size of {self} is too large for one kernel; make the batch smaller"),
        }
    }
}

/// A struct of numbers or of addresses.
impl<A: Argument<Raw: Copy + Default>, const N: usize> Argument for [A; N] {
    type Raw = [A::Raw; N];

    fn raw(&self) -> Result<Self::Raw> {
        let mut raw = [A::Raw::default(); N];
        for (raw, argument) in raw.iter_mut().zip(self) {
            *raw = argument.raw()?;
        }
        Ok(raw)
    }
}

impl Argument for bool {
    type Raw = i32;

    fn raw(&self) -> Result<i32> {
        Ok(i32::from(*self))
    }
}

impl Argument for f32 {
    type Raw = f32;

    fn raw(&self) -> Result<f32> {
        Ok(*self)
    }
}

/// Launches a kernel: `launch!(stream, y.kernel("average"), elements n; n, x, y, …)` with a thread for each of n elements;
/// `launch!(stream, y.kernel("relu"), wide n; n, x, y)` with a thread for 16 bytes of them; or
/// `launch!(stream, "combine", grid, block; partial, to, …)`. Nothing is launched for no elements.
macro_rules! launch {
    ($stream:expr, $name:expr, wide $n:expr; $($argument:expr),+ $(,)?) => {{
        let kernel = $crate::cuda::floats::Kernel::from($name);
        let threads = usize::div_ceil($n, kernel.0.of_16_bytes());
        $crate::cuda::launch::launch!($stream, kernel, elements threads; $($argument),+)
    }};
    ($stream:expr, $name:expr, elements $n:expr; $($argument:expr),+ $(,)?) => {
        match $n {
            0 => Ok(()),
            n => $crate::cuda::launch::launch!(@ $stream, $name,
                $crate::cuda::launch::elements(n)?; $($argument),+),
        }
    };
    ($stream:expr, $name:expr, $grid:expr, $block:expr; $($argument:expr),+ $(,)?) => {
        $crate::cuda::launch::launch!(@ $stream, $name,
            candle_core::cuda_backend::cudarc::driver::LaunchConfig {
                grid_dim: $grid,
                block_dim: $block,
                shared_mem_bytes: 0,
            }; $($argument),+)
    };
    (@ $stream:expr, $name:expr, $config:expr; $($argument:expr),+) => {{
        use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
        let config = $crate::cuda::launch::fits($config)?;
        let function = $stream.function($name)?;
        let mut launch = $stream.cuda().launch_builder(&function);
        $(
            let argument = $crate::cuda::launch::Argument::raw(&$argument)?;
            launch.arg(&argument);
        )+
        // Safety: the arguments are the kernel's, in its order and of its types; the addresses are
        // those of memory that this stream may use, as long as the kernel says.
        let launched = unsafe { launch.launch(config) };
        launched.map(|_| ()).map_err(candle_core::Error::wrap)
    }};
}
pub(crate) use launch;
