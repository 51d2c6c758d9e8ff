//! The state of what a run trains, as its record and its checks see it.

use anyhow::Result;
use candle_core::Tensor;
use d2l::Param;
use devices::device_name;
use training::compare;

/// A network in training, on one device or several. [`Run`](crate::Run) is told of it after every step: its parameters
/// have to be the same on all devices.
///
/// The book's `device_params`, a copy of the parameters for each device, is one. Where several processes train
/// together, all make the same calls.
pub trait TrainState {
    /// The tensors as they are now on the first device, by name; `names` are those of [`Run::init`](crate::Run::init).
    ///
    /// # Errors
    /// If a device fails.
    fn tensors(&self, names: &[String]) -> Result<Vec<(String, Tensor)>>;

    /// Compares the parameters on all devices, bit by bit; `names` are those of [`Run::init`](crate::Run::init).
    ///
    /// # Errors
    /// Names the first parameter that differs, with index, devices and both values.
    fn check_replicas(&self, names: &[String]) -> Result<()>;
}

impl TrainState for Vec<Vec<Param>> {
    fn tensors(&self, names: &[String]) -> Result<Vec<(String, Tensor)>> {
        let tensors = self
            .first()
            .into_iter()
            .flatten()
            .map(|param| param.detach());
        Ok(names.iter().cloned().zip(tensors).collect())
    }

    fn check_replicas(&self, names: &[String]) -> Result<()> {
        let Some((first, others)) = self.split_first() else {
            return Ok(());
        };
        let device = |i: usize, param: &Param| device_name(i, param.device());
        for (i, other) in (1..).zip(others) {
            for (name, (a, b)) in names.iter().zip(first.iter().zip(other)) {
                compare(name, [&device(0, a), &device(i, b)], [a, b])?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn replicas(values: &[[f32; 3]]) -> Result<Vec<Vec<Param>>> {
        let param = |v: &[f32; 3]| Ok(vec![Param::new(&Tensor::new(v, &Device::Cpu)?)?]);
        values.iter().map(param).collect()
    }

    #[test]
    fn a_replica_that_differs_is_named_to_the_bit() -> Result<()> {
        let names = ["b1".to_owned()];
        let same = replicas(&[[1.0, f32::NAN, 0.0]; 3])?;
        same.check_replicas(&names)?; // NaN is the same as NaN
        let differ = replicas(&[[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [1.0, 2.0, -0.0]])?;
        let error = differ.check_replicas(&names).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the replicas differ: b1[2] is 0 on cpu(0) and -0 on cpu(2)"
        );
        Ok(())
    }
}
