//! All-reduce of tensors, each on its member's device, for replicas on GPUs: every member copies the
//! others' to its own device and adds them up, in rank order. Nothing waits for a GPU.

use crate::{Error, Member};
use candle_core::{Device, Result, Tensor};

impl Member {
    /// The sum of `data` over all members, on the device of this member's; it has the same bits for
    /// all. Every member has to call it, with a tensor of the same shape.
    ///
    /// Copies between GPUs go through the host where the driver knows no shorter way.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// let mut member = collective::group(1, None).remove(0);
    /// let data = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// assert_eq!(member.all_reduce_tensor(&data)?.to_vec1::<f32>()?, [1., 2.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error`]: a member left, brought another number of elements, or did not come in time, or a
    /// device fails.
    pub fn all_reduce_tensor(&mut self, data: &Tensor) -> std::result::Result<Tensor, Error> {
        let all = self.all_gather(data.clone())?;
        let expected = all[0].elem_count();
        let differs = all.iter().position(|t| t.elem_count() != expected);
        if let Some(rank) = differs {
            return Err(Error::LengthMismatch {
                rank,
                found: all[rank].elem_count(),
                expected,
            });
        }
        let rank = self.rank();
        let failed = |error: candle_core::Error| Error::Device {
            rank,
            why: error.to_string(),
        };
        let sum = sum(&all, data.device()).map_err(failed)?;
        let read = ReadUpTo::now(data.device()).map_err(failed)?;
        for read in self.all_gather(read)? {
            read.before_more_on(data.device()).map_err(failed)?;
        }
        Ok(sum)
    }
}

fn sum(all: &[Tensor], device: &Device) -> Result<Tensor> {
    let mut sum = all[0].to_device(device)?;
    for other in &all[1..] {
        sum = (sum + other.to_device(device)?)?;
    }
    Ok(sum)
}

/// The point up to which a member's GPU has to come before the others may write over what it reads.
#[derive(Clone)]
struct ReadUpTo {
    #[cfg(feature = "cuda")]
    event: Option<std::sync::Arc<candle_core::cuda_backend::cudarc::driver::CudaEvent>>,
}

#[cfg(feature = "cuda")]
impl ReadUpTo {
    fn now(device: &Device) -> Result<Self> {
        let record = |device: &candle_core::CudaDevice| device.cuda_stream().record_event(None);
        let event = match device {
            Device::Cuda(device) => Some(record(device).map_err(candle_core::Error::wrap)?.into()),
            _ => None,
        };
        Ok(Self { event })
    }

    fn before_more_on(&self, device: &Device) -> Result<()> {
        match (&self.event, device) {
            (Some(event), Device::Cuda(device)) => {
                let waits = device.cuda_stream().wait(event);
                waits.map_err(candle_core::Error::wrap)
            }
            _ => Ok(()),
        }
    }
}

/// The CPU has done what it was asked for.
#[cfg(not(feature = "cuda"))]
impl ReadUpTo {
    fn now(_device: &Device) -> Result<Self> {
        Ok(Self {})
    }

    fn before_more_on(&self, _device: &Device) -> Result<()> {
        Ok(())
    }
}
