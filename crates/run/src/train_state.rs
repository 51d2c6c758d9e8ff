//! The state of what a run trains, as its checkpoints and its checks see it.

use anyhow::Result;
use candle_core::Tensor;
use d2l::{Param, device_name};
use training::compare;

/// A network in training, on one device or several. [`Run`](crate::Run) is told of it after every step: it is what
/// checkpoints keep, and what has to be the same on all devices.
///
/// The book's `device_params`, a copy of the parameters for each device, is one. Where several processes train
/// together, all make the same calls.
pub trait TrainState {
    /// The tensors of [`Run::init`](crate::Run::init), in its order, as they are now on the first device.
    ///
    /// # Errors
    /// If a device fails.
    fn tensors(&self) -> Result<Vec<Tensor>>;

    /// What else the next steps depend on, by name, such as momentum.
    ///
    /// # Errors
    /// If a device fails.
    fn extra_state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(Vec::new())
    }

    /// Whether each minibatch has become a part of a step, and none waits for others.
    fn is_between_steps(&self) -> bool {
        true
    }

    /// Compares the parameters on all devices, bit by bit; `names` are their names.
    ///
    /// # Errors
    /// Names the first parameter that differs, with index, devices and both values.
    fn check_replicas(&self, names: &[String]) -> Result<()>;

    /// The gradients of the loss by name, as the last step had them: means over the `examples` of its minibatch, or
    /// of all those of a step that has several. None where they are not summed yet.
    ///
    /// # Errors
    /// If a device fails.
    fn gradients(&self, names: &[String], examples: usize) -> Result<Vec<(String, Tensor)>>;
}

impl TrainState for Vec<Vec<Param>> {
    fn tensors(&self) -> Result<Vec<Tensor>> {
        let first = self.first().into_iter().flatten();
        Ok(first.map(|param| param.detach()).collect())
    }

    fn check_replicas(&self, names: &[String]) -> Result<()> {
        let Some((first, others)) = self.split_first() else {
            return Ok(());
        };
        let device = |i: usize, param: &Param| device_name(i, param.device());
        for (i, other) in (1..).zip(others) {
            for (name, (a, b)) in names.iter().zip(first.iter().zip(other)) {
                compare(name, (&device(0, a), a), (&device(i, b), b))?;
            }
        }
        Ok(())
    }

    fn gradients(&self, names: &[String], examples: usize) -> Result<Vec<(String, Tensor)>> {
        let first = names.iter().zip(self.first().into_iter().flatten());
        let mean = |(name, param): (&String, &Param)| {
            let sum = param.grad().as_detached_tensor();
            Ok((name.clone(), (sum / examples as f64)?))
        };
        first.map(mean).collect()
    }
}

/// What a person wants to know of the gradients of a step that went wrong.
pub(crate) fn largest_gradient(gradients: &[(String, Tensor)]) -> Result<String> {
    let mut largest: Option<(f32, &str)> = None;
    let (mut all, mut finite) = (0, 0);
    for (name, gradient) in gradients {
        let values = gradient.flatten_all()?.to_vec1::<f32>()?;
        let sizes = values.iter().map(|value| value.abs());
        let sizes = sizes.filter(|size| size.is_finite());
        all += values.len();
        finite += sizes.clone().count();
        if let Some(size) = sizes.max_by(f32::total_cmp)
            && largest.is_none_or(|(most, _)| size > most)
        {
            largest = Some((size, name));
        }
    }
    let others = format!(
        "{} of {all} gradient values are NaN or infinite",
        all - finite
    );
    Ok(match largest {
        None if all == 0 => "the gradients are not summed yet".to_owned(),
        None => others,
        Some((size, name)) if finite == all => {
            format!("the largest gradient is {size:.3e}, of {name}")
        }
        Some((size, name)) => {
            format!("{others}, the largest finite one is {size:.3e}, of {name}")
        }
    })
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

    #[test]
    fn the_largest_gradient_is_that_of_an_example() -> Result<()> {
        let words = |sums: [f32; 3]| {
            let gradients = replicas(&[[0.0; 3]])?;
            gradients[0][0]
                .grad()
                .set(&Tensor::new(&sums, &Device::Cpu)?)?;
            largest_gradient(&gradients.gradients(&["W".to_owned()], 2)?)
        };
        let words_of = "the largest gradient is 4.000e0, of W";
        assert_eq!(words([4.0, -8.0, 0.0])?, words_of);
        assert_eq!(
            words([f32::NAN, 0.0, 1.0])?,
            "1 of 3 gradient values are NaN or infinite, the largest finite one is 5.000e-1, of W"
        );
        assert_eq!(largest_gradient(&[])?, "the gradients are not summed yet");
        Ok(())
    }
}
