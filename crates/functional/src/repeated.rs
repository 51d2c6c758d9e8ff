//! Work that a GPU does again and again, handed to it as a whole.

use candle_core::{Device, Result};
use std::fmt;

/// Work that launches the same kernels on the same memory in each call: for example a training step, where
/// each minibatch is first copied to the memory of the last one. After a few calls the work is recorded as a
/// CUDA graph; from then on the GPU gets all of it in one call. On other devices the work is just called.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// let (x, w) = (Tensor::new(&[2f32], &Device::Cpu)?, Var::new(&[1f32], &Device::Cpu)?);
/// let mut step = functional::Repeated::new(&Device::Cpu);
/// for _ in 0..3 {
///     step.run(|| w.set(&(w.as_tensor() + &x)?))?;
/// }
/// assert_eq!(w.to_vec1::<f32>()?, [7.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub struct Repeated {
    #[cfg(feature = "cuda")]
    on_a_gpu: Option<crate::cuda::Repeated>,
}

impl fmt::Debug for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut repeated = f.debug_struct("Repeated");
        repeated.field("is_recorded", &self.is_recorded()).finish()
    }
}

impl Repeated {
    /// For work on `device` alone, of which [`one_stream`](crate::one_stream) was told before it had any tensor.
    pub fn new(device: &Device) -> Self {
        #[cfg(not(feature = "cuda"))]
        let _ = device;
        Self {
            #[cfg(feature = "cuda")]
            on_a_gpu: match device {
                Device::Cuda(device) => Some(crate::cuda::Repeated::new(device)),
                _ => None,
            },
        }
    }

    /// Calls `work`, or repeats its recorded kernels. `work` must do the same in each call, read and write
    /// the same memory, and leave its results in memory that existed before. It may use operations of this
    /// crate, and those of candle that copy nothing from the host. Once `work` is recorded, no part of it runs
    /// on the host: numbers from the host, such as a learning rate, keep their recorded values. No other
    /// thread may give the device work during the call. A `Repeated` holds memory of its own.
    ///
    /// # Errors
    /// As of `work`; and where `work` cannot be recorded, because it copies from or to the host, keeps a
    /// tensor that it made, or needs other memory in each call. After a failed recording there is no second
    /// try.
    pub fn run(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(repeated) = &mut self.on_a_gpu {
            return repeated.run(work);
        }
        work()
    }

    /// Whether it has been recorded, so that from now on it is repeated and not called.
    pub fn is_recorded(&self) -> bool {
        #[cfg(feature = "cuda")]
        if let Some(repeated) = &self.on_a_gpu {
            return repeated.is_recorded();
        }
        false
    }
}
