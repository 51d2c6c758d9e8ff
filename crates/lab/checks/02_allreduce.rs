// The sums of lists of 1 to 4 tensors, on the CPU.

use anyhow::{Result, bail, ensure};
use candle_core::{Device, Var};

use super::exercise::allreduce;

pub fn check() -> Result<()> {
    for k in [2, 3, 4, 1] {
        // data[0] has 1, data[1] has 10, data[2] has 100: the digits of a sum say how often it has each
        let own: Vec<f32> = (0..k).map(|i| 10f32.powi(i)).collect();
        let data = own.iter().map(|x| Var::new(&[*x, 2.0 * x], &Device::Cpu));
        let data: Vec<Var> = data.collect::<candle_core::Result<_>>()?;
        let done = allreduce(&data);
        let itself = "derived from its value";
        let sets_itself = done.as_ref().is_err_and(|error| error.to_string().contains(itself));
        ensure!(
            !sets_itself,
            "In a list of {k}, you set a tensor to itself, which candle refuses. Add into data[0], \
             and then write the sum into data[1] and the others only."
        );
        done?;

        let sum: f32 = own.iter().sum();
        let right = [sum, 2.0 * sum];
        for (i, tensor) in data.iter().enumerate() {
            let yours = tensor.to_vec1::<f32>()?;
            if yours == right {
                continue;
            }
            let so_far: f32 = own[..=i].iter().sum();
            let why = match yours[0] {
                x if x == own[i] => "keeps its old value: the sum was not written back to it",
                x if x == own[own.len() - 1] => {
                    "has only the last tensor: `set` replaces the old value, so add it first"
                }
                x if x == so_far => "is only a part: the sum was not complete when you wrote it",
                x if x == sum + own[0] => "has the tensor of device 0 in it 2 times",
                x if x == sum / k as f32 => "is the mean of all tensors: do not divide the sum",
                x if i > 0 && x == 2.0 * sum - own[0] => {
                    "has some values twice, because data[0] was the sum already: compute the sum once, then copy it"
                }
                _ => "is not the sum of all tensors",
            };
            bail!("In a list of {k}, data[{i}] {why}.\n  yours: {yours:?}\n  right: {right:?}");
        }
    }
    Ok(())
}
