use candle_core::{Device, Tensor};
use std::time::Instant;
fn main() -> anyhow::Result<()> {
    let a: Vec<String> = std::env::args().collect();
    let (net, b, k, t): (&str, usize, usize, usize) =
        (&a[1], a[2].parse()?, a[3].parse()?, a[4].parse()?);
    let n: usize = a.get(5).map_or(10, |v| v.parse().unwrap());
    d2l::share_cores(Some(t), k);
    let devices = d2l::devices_of_kind(d2l::DeviceKind::Cpu, Some(k))?;
    let x = d2l::normal(&mut d2l::rng(1), 1.0, (b, 1, 28, 28))?;
    let y: Vec<u32> = (0..b as u32).map(|i| i * 7 % 10).collect();
    let y = Tensor::from_vec(y, b, &Device::Cpu)?;
    let mut ts = vec![];
    let mut l = 0.;
    if net == "lenet" {
        let params = scratch::init_params(0)?;
        let dp = devices
            .iter()
            .map(|d| scratch::get_params(&params, d))
            .collect::<candle_core::Result<Vec<_>>>()?;
        for _ in 0..n {
            let s = Instant::now();
            l = scratch::train_batch(&x, &y, &dp, &devices, 0.01)?;
            ts.push(s.elapsed().as_secs_f64() * 1e3);
        }
    } else {
        let net =
            concise::DataParallel::new(&devices, concise::Initializer::Normal(0.01), 0, |vb| {
                concise::resnet18(10, vb)
            })?;
        let mut tr =
            concise::Trainer::new(&net, functional::cross_entropy, concise::Sgd::new(0.01));
        for _ in 0..n {
            let s = Instant::now();
            l = tr.step(&x, &y)?.loss;
            ts.push(s.elapsed().as_secs_f64() * 1e3);
        }
    }
    let mut w = ts.split_off(2.min(n - 1));
    w.sort_by(f64::total_cmp);
    let rss = std::fs::read_to_string("/proc/self/status")?;
    let rss = rss
        .lines()
        .find(|l| l.starts_with("VmHWM"))
        .unwrap()
        .to_owned();
    println!(
        "{net} b{b} k{k} t{t}: median {:.2} min {:.2} max {:.2} ms loss {l} {rss}",
        w[w.len() / 2],
        w[0],
        w[w.len() - 1]
    );
    Ok(())
}
