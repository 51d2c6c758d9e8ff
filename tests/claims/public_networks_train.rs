//! The networks of `examples/networks` have PyTorch's losses, on one replica and on two.

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use concise::layers::Sequential;
use concise::{DataParallel, Initializer, Sgd, Trainer};
use data_parallel::Replication;
use data_parallel::prelude::{cross_entropy, squared_error};
use libtest_mimic::Trial;

use crate::kit::{cpus, formula, formula_tensor, theirs, trial};

#[path = "../../examples/networks/diffusion.rs"]
mod diffusion;
#[path = "../../examples/networks/images.rs"]
mod images;
#[path = "../../examples/networks/sequences.rs"]
mod sequences;

type Make = fn(VarBuilder<'_>) -> candle_core::Result<Sequential>;

/// Each network with the shape of its four inputs.
const NETWORKS: [(&str, Make, &[usize]); 7] = [
    ("llama", |vb| in_one(sequences::llama(vb)?), &[4, 64]),
    ("vit", |vb| in_one(sequences::vit(vb)?), &[4, 1, 28, 28]),
    ("lstm", sequences::lstm, &[4, 20]),
    ("mobilenet_v2", images::mobilenet_v2, &[4, 3, 64, 64]),
    ("convnext", images::convnext, &[4, 3, 64, 64]),
    ("unet", |vb| in_one(diffusion::unet(vb)?), &[4, 1, 28, 28]),
    (
        "sd_unet",
        |vb| in_one(diffusion::sd_unet(vb)?),
        &[4, 1, 28, 28],
    ),
];

fn in_one(net: impl functional::Network + 'static) -> candle_core::Result<Sequential> {
    Ok(Sequential::new().add(net))
}

/// One test for each network.
pub fn trials() -> Vec<Trial> {
    let of = |(name, make, dims): (&'static str, Make, &'static [usize])| {
        let test = format!("{name}_has_pytorchs_losses");
        trial(module_path!(), &test, move || {
            has_pytorchs_losses(name, make, dims)
        })
    };
    NETWORKS.into_iter().map(of).collect()
}

fn has_pytorchs_losses(name: &str, make: Make, dims: &[usize]) -> Result<()> {
    let all = theirs(include_str!("../pytorch/public_networks.json"));
    let theirs = &all[name];
    for k in [1, 2, 3] {
        let net = network(k, name, make)?;
        ensure!(theirs["parameters"] == net.num_parameters(), "{name}");
        let losses = losses(&net, name, dims)?;
        for (step, loss) in losses.into_iter().enumerate() {
            let exact = theirs["losses"][step].as_f64().context("no loss")?;
            let distance = theirs["float32"][step].as_f64().context("no distance")?;
            if distance > 0.01 {
                // PyTorch's float32 says nothing any more
                ensure!(step >= 2, "{name}");
                break;
            }
            let apart = (f64::from(loss) - exact).abs();
            let allowed = (10. * distance).max(1e-5);
            ensure!(
                apart <= allowed,
                "{name}, k = {k}, step {step}: {loss}, PyTorch's {exact}"
            );
        }
    }
    Ok(())
}

/// With the parameters of `public_networks.py`. Batch norms take the statistics of the whole minibatch.
fn network(k: usize, name: &str, make: Make) -> Result<DataParallel> {
    let together = Replication {
        sync_bn: name == "mobilenet_v2", // no other has batch norms
        ..Replication::default()
    };
    let net = DataParallel::with(together, &cpus(k), Initializer::Layers, 0, make)?;
    let mut state = net.state_dict()?;
    let is_parameter = |(name, _): &&mut (String, Tensor)| {
        !name.contains("running") && !name.ends_with("num_batches_tracked")
    };
    for (s, (name, tensor)) in state.iter_mut().filter(is_parameter).enumerate() {
        let is_scale = name.contains("norm") && name.ends_with("weight");
        let std = if tensor.rank() > 1 { 0.08 } else { 0.02 };
        *tensor = formula_tensor(s as u32, std, tensor.dims())?;
        if is_scale {
            *tensor = (&*tensor + 1.0)?;
        }
    }
    net.load_state_dict(&state)?;
    Ok(net)
}

/// Those of five steps on the same four examples: classes of images, characters and the next ones, or noise.
fn losses(net: &DataParallel, name: &str, dims: &[usize]) -> Result<Vec<f32>> {
    let labels = |batch: u32, dims: &[usize]| {
        let labels = formula(2000 + batch, dims.iter().product());
        let labels: Vec<u32> = labels.map(|u| (u * 10.0) as u32).collect();
        Tensor::from_vec(labels, dims, &Device::Cpu)
    };
    let is_noise = name.ends_with("unet");
    let (x, y) = match dims {
        [_, _] => (labels(0, dims)?, labels(1, dims)?),
        _ if is_noise => {
            let y = formula_tensor(1001, 1.0, dims)?.permute((0, 2, 3, 1))?;
            (formula_tensor(1000, 1.0, dims)?, y.contiguous()?)
        }
        _ => (formula_tensor(1000, 1.0, dims)?, labels(0, &dims[..1])?),
    };
    let loss = if is_noise {
        squared_error
    } else {
        cross_entropy
    };
    let lr = if name == "mobilenet_v2" { 1e-5 } else { 0.01 };
    let mut trainer = Trainer::new(net, loss, Sgd::new(lr));
    let step = |_| Ok(trainer.step(&x, &y)?.loss.mean()?);
    (0..5).map(step).collect()
}
