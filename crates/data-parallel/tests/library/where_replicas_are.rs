//! A run is defined by its replicas. Where they are, in one process or in several, changes no bit.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use data_parallel::Processes;
use data_parallel::collective::{Error, GroupOptions, Member, ProcessGroup, SumOrder, group};
use data_parallel::functional::{Network, cross_entropy};
use data_parallel::layers::{
    BatchNorm2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Nhwc, Relu, Sequential,
};
use data_parallel::training::shares;
use data_parallel::{AdamW, Algorithm, DataParallel, Initializer, Replication, Trainer, World};

use crate::kit::{cpus, formula_batch, sgd};

/// A process that is a thread, on one of its channels.
struct Thread {
    member: Member,
    world: Arc<Channels>,
    /// How many channels were made from this one, which alone makes others.
    made: AtomicUsize,
}

/// The members of each channel, until their processes take them.
type Channels = Mutex<Vec<Vec<Option<Member>>>>;

impl Thread {
    /// Process `rank` of `size` on a channel.
    fn on(channel: usize, rank: usize, size: usize, world: Arc<Channels>) -> Self {
        let mut channels = world.lock().expect("no thread panicked");
        if channel == channels.len() {
            let members = group(size, GroupOptions::default()).into_iter();
            channels.push(members.map(Some).collect());
        }
        let member = channels[channel][rank].take().expect("it is there once");
        drop(channels);
        let made = AtomicUsize::new(0);
        Self {
            member,
            world,
            made,
        }
    }
}

impl ProcessGroup for Thread {
    fn rank(&self) -> usize {
        self.member.rank()
    }

    fn size(&self) -> usize {
        self.member.size()
    }

    fn all_reduce(&mut self, vectors: &mut [&mut [f32]], order: &SumOrder) -> Result<(), Error> {
        let mut all = self.member.all_gather(vectors.concat())?.concat();
        let len = vectors[0].len();
        assert_eq!(all.len(), len * order.vectors.iter().sum::<usize>());
        order.sum(&mut all, len);
        vectors[0].copy_from_slice(&all[..len]);
        Ok(())
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.member.all_gather(own.to_vec())
    }

    fn duplicate(&self) -> Result<Box<dyn ProcessGroup>, Error> {
        let channel = 1 + self.made.fetch_add(1, Relaxed);
        let (rank, size) = (self.rank(), self.size());
        Ok(Box::new(Self::on(channel, rank, size, self.world.clone())))
    }
}

/// What is trained, and how.
struct Case<N> {
    network: fn(VarBuilder<'_>) -> candle_core::Result<N>,
    trainer: fn(&DataParallel) -> candle_core::Result<Trainer>,
    how: Replication,
    /// Whether the shares have different sizes.
    uneven: bool,
}

impl<N> Case<N> {
    /// SGD with momentum, the default replication, equal shares.
    fn plain(network: fn(VarBuilder<'_>) -> candle_core::Result<N>) -> Self {
        Self {
            network,
            trainer: momentum,
            how: Replication::default(),
            uneven: false,
        }
    }
}

fn convolutional(vb: VarBuilder<'_>, norm: bool, dropout: bool) -> candle_core::Result<Sequential> {
    let mut net = Sequential::new()
        .add(Nhwc)
        .add(Conv2d::new(1, 8, 5, vb.pp("conv"))?);
    if norm {
        net = net.add(BatchNorm2d::new(8, vb.pp("norm"))?);
    }
    net = net.add(Relu).add(MaxPool2d::new(2)).add(Flatten);
    if dropout {
        net = net.add(Dropout::new(0.5, vb.pp("dropout"))?);
    }
    Ok(net.add(Linear::new(8 * 12 * 12, 10, vb.pp("fc"))?))
}

fn momentum(net: &DataParallel) -> candle_core::Result<Trainer> {
    Ok(Trainer::new(net, cross_entropy, sgd(0.05, 0.9)))
}

/// Runs `job` in processes that are threads, with so many replicas each, and returns what each of them returns.
pub fn in_processes<T: Send>(
    layout: &[usize],
    job: impl Fn(&World) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let returned = with_processes(layout, |processes, replicas| {
        job(&World::of(Arc::new(processes), cpus(replicas)))
    });
    returned.into_iter().collect()
}

/// As [`in_processes`], with what the processes say when they finish.
pub fn to_the_end(
    layout: &[usize],
    job: impl Fn(&World) -> Result<()> + Sync,
) -> Result<Vec<candle_core::Result<()>>> {
    let returned = with_processes(layout, |processes, replicas| {
        let processes = Arc::new(processes);
        job(&World::of(processes.clone(), cpus(replicas)))?;
        let processes = Arc::into_inner(processes).context("a network is still there")?;
        Ok(processes.finish())
    });
    returned.into_iter().collect()
}

/// Runs `job` in processes that are threads. It gets the number of replicas.
fn with_processes<T: Send>(layout: &[usize], job: impl Fn(Processes, usize) -> T + Sync) -> Vec<T> {
    let (world, job) = (Arc::<Channels>::default(), &job);
    std::thread::scope(|scope| {
        let processes = layout.iter().enumerate().map(|(rank, replicas)| {
            let thread = Thread::on(0, rank, layout.len(), world.clone());
            scope.spawn(move || {
                let processes = match thread.size() {
                    1 => Processes::alone(),
                    _ => Processes::of(Box::new(thread)),
                };
                job(processes, *replicas)
            })
        });
        let processes: Vec<_> = processes.collect();
        let returned = processes
            .into_iter()
            .map(|process| process.join().expect("no panic"));
        returned.collect()
    })
}

/// The bits of the parameters, the buffers of all replicas and the optimizer's state after four minibatches, and of the
/// losses, as process 0 has them. Each process has so many replicas. The minibatches have 11 examples, and 2.
fn trained<N: Network + 'static>(layout: &[usize], case: &Case<N>) -> Result<Vec<u32>> {
    let bits = in_processes(layout, |world| train_in(world, layout, case))?;
    bits.into_iter().next().context("there is a process")
}

/// What one process does.
fn train_in<N: Network + 'static>(
    world: &World,
    layout: &[usize],
    case: &Case<N>,
) -> Result<Vec<u32>> {
    let (rank, k) = (world.processes().rank(), layout.iter().sum());
    let first = layout[..rank].iter().sum();
    let replicas = first..first + layout[rank];
    let (how, init) = (case.how.clone(), Initializer::Xavier(3.0));
    let net = DataParallel::with(how, world, init, 0, case.network)?;
    let weights = &[if case.uneven { 3.0 } else { 1.0 }, 1.0, 1.0, 1.0][..k];
    net.set_split(weights)?;
    let mut trainer = (case.trainer)(&net)?;
    let mut all = Vec::new();
    for (number, n) in (0..).zip([11, 2, 11, 11]) {
        let (x, y) = formula_batch(number, n)?;
        let shares = shares(n, weights);
        let from = shares[..replicas.start].iter().sum();
        let len = shares[replicas.clone()].iter().sum();
        let step = trainer.step(&x.narrow(0, from, len)?, &y.narrow(0, from, len)?)?;
        all.push(Tensor::new(step.loss.mean()?, &Device::Cpu)?);
    }
    let mut state = [net.state_dict()?, trainer.state_dict()?].concat();
    state.sort_by(|(a, _), (b, _)| a.cmp(b)); // those of several processes come in any order
    all.extend(state.into_iter().map(|(_, tensor)| tensor));
    net.check_replicas()?;
    let bits = |tensor: &Tensor| {
        let values = tensor
            .to_dtype(candle_core::DType::F32)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        anyhow::Ok(values.into_iter().map(f32::to_bits).collect::<Vec<u32>>())
    };
    Ok(all.iter().map(bits).collect::<Result<Vec<_>>>()?.concat())
}

/// Two processes, which give an element of a parameter different values.
#[test]
fn processes_that_differ_are_named() -> Result<()> {
    let expected = "the replicas differ: weight[1, 0] is 0.5 on process 0 and 0.75 on process 1";
    in_processes(&[1, 1], |world| {
        let (how, init) = (Replication::default(), Initializer::Xavier(3.0));
        let layer = |vb: VarBuilder<'_>| Linear::new(2, 3, vb);
        let net = DataParallel::with(how, world, init, 0, layer)?;
        net.check_replicas()?;
        let mut state = net.state_dict()?;
        let weight = state.iter_mut().find(|(name, _)| name == "weight");
        let (_, weight) = weight.context("no weight")?;
        let mut values = weight.to_vec2::<f32>()?;
        values[1][0] = [0.5, 0.75][world.processes().rank()];
        *weight = Tensor::new(values, &Device::Cpu)?;
        for said in [net.load_state_dict(&state), net.check_replicas()] {
            let error = said.err().context("they are the same")?.to_string();
            ensure!(error == expected, "{error}");
        }
        Ok(())
    })?;
    Ok(())
}

/// All layouts of `k` replicas in one process to `k`.
fn layouts(k: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..1 << (k - 1)).map(move |cuts| {
        let ends = (1..=k).filter(|end| *end == k || cuts >> (end - 1) & 1 == 1);
        ends.scan(0, |start, end| Some(end - std::mem::replace(start, end)))
            .collect()
    })
}

fn same_in_every_layout<N: Network + 'static>(what: &str, case: &Case<N>) -> Result<()> {
    for k in 2..=4 {
        let one = trained(&[k], case)?;
        let bytes: Vec<u8> = one.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        println!("{what}, {k} replicas: {:08x}", crc32fast::hash(&bytes));
        for layout in layouts(k).filter(|layout| layout.len() > 1) {
            let bits = trained(&layout, case)?;
            ensure!(
                bits == one,
                "{what}: {layout:?} gives other bits than one process"
            );
        }
    }
    Ok(())
}

#[test]
fn every_layout_trains_to_the_same_bits() -> Result<()> {
    type Change = fn(&mut Case<Sequential>);
    let cases: [(&str, Change); 7] = [
        ("momentum", |_| ()),
        ("star, accumulation", |case| {
            case.how.allreduce = Algorithm::Star;
            case.trainer = |net| momentum(net)?.accumulate(2);
        }),
        ("tree, small buckets", |case| {
            case.how.allreduce = Algorithm::Tree;
            case.how.bucket_bytes = 4096;
        }),
        ("shares of 3, 1, 1, 1", |case| case.uneven = true),
        ("batch norm", |case| {
            case.network = |vb| convolutional(vb, true, false);
        }),
        ("synchronized batch norm", |case| {
            case.network = |vb| convolutional(vb, true, false);
            case.how.sync_bn = true;
        }),
        ("dropout, AdamW, clipped", |case| {
            case.network = |vb| convolutional(vb, true, true);
            case.trainer = |net| Trainer::new(net, cross_entropy, AdamW::default()).clip_norm(1.0);
        }),
    ];
    for (what, change) in cases {
        let mut case = Case::plain(|vb| convolutional(vb, false, false));
        change(&mut case);
        same_in_every_layout(what, &case)?;
    }
    Ok(())
}
