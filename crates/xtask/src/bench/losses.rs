//! Change of the losses of twenty steps by Winograd's algorithm, compared with a change of each weight in its last
//! place.

use anyhow::Result;
use d2l::share_cores;
use dataset::Data;
use devices::{DeviceKind, devices_of_kind};

use super::options::CpuOptions;
use super::work::Network;
use crate::bench::train::{apart, train};

/// The table of the report.
///
/// # Errors
/// If the data cannot be read or a step fails.
pub fn table(options: &CpuOptions) -> Result<String> {
    let mut text = String::from(
        "\n## Losses with Winograd's algorithm\n\n\
         The largest relative difference of a loss in 20 steps. LeNet: batch 256, lr 0.02, weights ten times the \
         book's. ResNet-18: batch 64, lr 0.01.\n\n\
         | | goal | compared with im2col | im2col, after a change of the weights in the last place |\n\
         |---|--:|--:|--:|\n",
    );
    for (network, batch_size) in [(Network::Lenet, 256), (Network::Resnet18, 64)] {
        let (winograd, moved) = differences(options, network, batch_size)?;
        let winograd = percent(winograd);
        let moved = percent(moved);
        text += &format!("| {network} | 0.1% | {winograd} | {moved} |\n");
    }
    Ok(text)
}

/// Two digits of a share.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    let digits = (1.0 - percent.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{percent:.digits$}%")
}

/// Largest relative differences of the losses of the same steps: with Winograd's algorithm from those without, and, to
/// compare, those without from themselves after each weight moved by about one in its last place.
fn differences(options: &CpuOptions, network: Network, batch_size: usize) -> Result<(f64, f64)> {
    let threads = options.threads();
    share_cores(Some(threads), threads);
    let devices = devices_of_kind(DeviceKind::Cpu, Some(threads))?;
    let mut source = dataset::Options {
        data: options.data.clone(),
        limit_train: Some(20 * batch_size),
        limit_test: Some(batch_size),
        ..dataset::Options::default()
    };
    if !source.names_a_source() {
        source.data = Some(Data::Synthetic);
    }
    let (train_iter, _) = dataset::load(&source)?.iters(batch_size)?;
    let losses = |winograd, noise| {
        functional::set_winograd(winograd);
        let trained = train(network, &devices, noise, train_iter.epoch(1))?;
        anyhow::Ok(trained.losses)
    };
    let winograd = losses(true, 0.0)?;
    let plain = losses(false, 0.0)?;
    let moved = losses(false, f64::from(f32::EPSILON))?;
    functional::set_winograd(true);
    Ok((apart(&winograd, &plain), apart(&moved, &plain)))
}
