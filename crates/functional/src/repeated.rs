//! Work that a GPU does again and again, handed to it as a whole.

use candle_core::{Device, Result};
use std::fmt;

/// Work that gives a GPU the same kernels on the same memory each time that it is called: a training step whose
/// minibatch is copied to where the last one was. After a few calls it is recorded as a CUDA graph, and from then on
/// the GPU gets all of it in one call. Elsewhere it is just called.
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

    /// Calls `work`, or repeats what it gave the GPU the last time. It has to do the same each time, to read and write
    /// the same memory, and to leave its results in memory that was there before; it may use operations of this
    /// crate and those of candle's that bring nothing from the host. Once it is recorded, nothing of it runs on the
    /// host: numbers that it took from there, such as a learning rate, stay what they were. Nobody else may give the
    /// device anything while it runs. It holds memory of its own.
    ///
    /// # Errors
    /// As of `work`; and where it cannot be recorded, because it copies from or to the host, keeps a tensor that it made,
    /// or wants other memory each time. After that it is not tried again.
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
