//! The communication stream of a GPU, beside the stream that computes. With it, gradients are summed while the
//! backward pass goes on. It knows no member and no sum.
//!
//! A tensor moves to it with its memory, without a copy. A sum waits only for what has written its own tensor, and the
//! computing stream waits for the sum when it gets the tensor back.

use std::sync::{Arc, Mutex};

use candle_core::{Device, Result, Tensor};
use devices::{WorkSoFar, follow, lock};

use platform::{check_is_whole, exchange_memory, second, without_memory};

/// A second stream on a device. A tensor moves to it and back with its memory, without a copy. On the CPU, this does
/// nothing.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_collective::CommunicationStream;
/// let stream = CommunicationStream::beside(&Device::Cpu)?;
/// let mut member = data_parallel_collective::group(1, Default::default()).remove(0);
/// let data = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
/// let written = stream.written()?;
/// let data = stream.take(data, &written)?; // on another thread
/// member.all_reduce_tensor(data.tensor())?;
/// let data = data.give_back()?;
/// assert_eq!(data.to_vec1::<f32>()?, [1., 2.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct CommunicationStream {
    computes: Device,
    communicates: Device,
    /// Tensors of this stream that were given back, without their memory: to make one is to allocate.
    spare: Arc<Mutex<Vec<Tensor>>>,
}

impl CommunicationStream {
    /// A stream beside that of `device`.
    ///
    /// # Errors
    /// If the GPU has no memory left for the handles of the libraries.
    pub fn beside(device: &Device) -> Result<Self> {
        Ok(Self {
            computes: device.clone(),
            communicates: second(device)?,
            spare: Arc::default(),
        })
    }

    /// What the computing stream was given until now. The thread that computes calls this where a tensor is complete:
    /// later, more work would be in the stream, and a sum would wait for it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn written(&self) -> Result<WorkSoFar> {
        WorkSoFar::of(&self.computes)
    }

    /// The f32 of `tensor` for work on this stream, behind the work that has `written` them. Other tensors that share
    /// the memory of `tensor` lose it.
    ///
    /// # Errors
    /// If `tensor` is not f32, is a part of another tensor, or is not on the device.
    pub fn take(&self, tensor: Tensor, written: &WorkSoFar) -> Result<Taken> {
        let mut all_spare = lock(&self.spare);
        let of_the_shape = |spare: &Tensor| spare.shape() == tensor.shape();
        let found = all_spare.iter().position(of_the_shape);
        let spare = found.map(|at| all_spare.swap_remove(at));
        drop(all_spare);
        let here = match spare {
            Some(here) => here,
            None => without_memory(&tensor, &self.communicates)?,
        };
        check_is_whole(&tensor)?;
        exchange_memory(&tensor, &here)?;
        written.comes_before(&self.communicates)?;
        Ok(Taken {
            stream: self.clone(),
            home: tensor,
            here,
            is_given_back: false,
        })
    }
}

/// A tensor on a communication stream. If it is not given back, its memory is freed behind the work of that stream.
#[derive(Debug)]
pub struct Taken {
    stream: CommunicationStream,
    /// The tensor that was taken, without its memory.
    home: Tensor,
    here: Tensor,
    is_given_back: bool,
}

impl Taken {
    /// The tensor, for work on the communication stream.
    pub fn tensor(&self) -> &Tensor {
        &self.here
    }

    /// The tensor for the stream that computes, in the memory that it had. The later work of that stream comes after the
    /// work of the communication stream so far.
    ///
    /// # Errors
    /// If the device fails.
    pub fn give_back(mut self) -> Result<Tensor> {
        self.order()?;
        self.is_given_back = true;
        exchange_memory(&self.home, &self.here)?;
        if self.here.device().is_cuda() {
            lock(&self.stream.spare).push(self.here.clone());
        }
        Ok(self.home.clone())
    }

    fn order(&self) -> Result<()> {
        follow(&self.stream.communicates, &self.stream.computes)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_given_back {
            let _ = self.order(); // fails only with the GPU
        }
    }
}

#[cfg(not(feature = "cuda"))]
mod platform {
    use candle_core::{Device, Result, Tensor};

    pub fn second(device: &Device) -> Result<Device> {
        Ok(device.clone())
    }

    pub fn without_memory(tensor: &Tensor, _to: &Device) -> Result<Tensor> {
        Ok(tensor.clone())
    }

    pub fn check_is_whole(_: &Tensor) -> Result<()> {
        Ok(())
    }

    pub fn exchange_memory(_: &Tensor, _: &Tensor) -> Result<()> {
        Ok(())
    }
}

#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod platform {
    use candle_core::cuda_backend::CudaStorage;
    use candle_core::cuda_backend::cudarc::driver::CudaSlice;
    use candle_core::op::BackpropOp;
    use candle_core::{Device, Result, Storage, Tensor, bail};
    use devices::{StorageMut, with_storage_mut, without_events};

    /// A device with another stream on the same GPU.
    pub fn second(device: &Device) -> Result<Device> {
        let Device::Cuda(gpu) = device else {
            return Ok(device.clone());
        };
        let number = gpu.cuda_stream().context().ordinal();
        Ok(without_events(Device::new_cuda_with_stream(number)?))
    }

    /// A tensor of the same shape on `to`, whose memory is one element.
    pub fn without_memory(tensor: &Tensor, to: &Device) -> Result<Tensor> {
        let Device::Cuda(gpu) = to else {
            return Ok(tensor.clone());
        };
        // Safety: nothing reads it before it is exchanged.
        let memory = unsafe { gpu.alloc::<f32>(1)? };
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(memory, gpu.clone()));
        let none = BackpropOp::none();
        Ok(Tensor::from_storage(storage, tensor.shape(), none, false))
    }

    /// An error where other elements lie in the memory of `tensor` as well.
    pub fn check_is_whole(tensor: &Tensor) -> Result<()> {
        if !tensor.device().is_cuda() || tensor.elem_count() == 0 {
            return Ok(());
        }
        let all = with_floats_of(tensor, |memory| Ok(memory.len()))?;
        if !tensor.is_contiguous() || all != tensor.elem_count() {
            bail!("a part of a tensor cannot move to another stream")
        }
        Ok(())
    }

    pub fn exchange_memory(a: &Tensor, b: &Tensor) -> Result<()> {
        if !a.device().is_cuda() {
            return Ok(());
        }
        with_floats_of(a, |a| {
            with_floats_of(b, |b| {
                std::mem::swap(a, b);
                Ok(())
            })
        })
    }

    fn with_floats_of<R>(
        tensor: &Tensor,
        f: impl FnOnce(&mut CudaSlice<f32>) -> Result<R>,
    ) -> Result<R> {
        with_storage_mut(tensor, |memory, _| {
            let StorageMut::Cuda(storage) = memory else {
                bail!("expected a tensor on a GPU")
            };
            f(storage.as_cuda_slice_mut::<f32>()?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType;

    /// Takes `values` to the communication stream, and adds 1 there.
    fn with_one_more(stream: &CommunicationStream, values: Tensor) -> Result<Taken> {
        let taken = stream.take(values, &stream.written()?)?;
        let more = (taken.tensor() + 1.)?;
        taken.tensor().slice_set(&more, 0, 0)?;
        Ok(taken)
    }

    fn each_stream_waits_for_the_other(device: &Device) -> Result<()> {
        let n = 1000;
        let stream = CommunicationStream::beside(device)?;
        let mut values = Tensor::zeros(n, DType::F32, device)?;
        for round in 0..10 {
            values.slice_set(&Tensor::full(round as f32, n, device)?, 0, 0)?;
            values = with_one_more(&stream, values)?.give_back()?;
            let twice = (&values * 2.)?;
            assert_eq!(twice.to_vec1::<f32>()?, vec![2. * (round as f32 + 1.); n]);
            let other = Tensor::zeros(n, DType::F32, device)?;
            drop(with_one_more(&stream, other)?); // its memory may be that of the next tensor
        }
        Ok(())
    }

    #[test]
    fn a_tensor_comes_back_with_its_values() -> Result<()> {
        each_stream_waits_for_the_other(&Device::Cpu)
    }

    #[cfg(feature = "cuda")]
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_each_stream_waits_for_the_other() -> Result<()> {
        let device = Device::new_cuda_with_stream(0)?;
        each_stream_waits_for_the_other(&devices::without_events(device))
    }

    #[cfg(feature = "cuda")]
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_a_part_cannot_move() -> Result<()> {
        let device = devices::without_events(Device::new_cuda_with_stream(0)?);
        let stream = CommunicationStream::beside(&device)?;
        let part = Tensor::zeros(8, DType::F32, &device)?.narrow(0, 0, 4)?;
        let error = stream.take(part, &stream.written()?).unwrap_err();
        assert!(error.to_string().contains("a part of a tensor"), "{error}");
        Ok(())
    }
}
