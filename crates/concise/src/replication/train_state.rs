//! What a run needs of a network in training: all that a checkpoint keeps, and whether the replicas agree.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor, Var};
use d2l::device_name;
use run::{TrainState, compare, weights};

use super::data_parallel::DataParallel;
use super::replica::Replica;
use super::split::Split;
use super::trainer::Trainer;

// The names of what is kept beside parameters and buffers of the first replica.
const STEPS: &str = "steps";
const SPLIT: &str = "split";

/// A buffer of a replica that is not the first of all.
fn buffer_of(replica: usize, name: &str) -> String {
    format!("replica {replica} {name}")
}

impl TrainState for Trainer {
    fn tensors(&self) -> Result<Vec<Tensor>> {
        let state = self.net.state_dict()?;
        Ok(state.into_iter().map(|(_, tensor)| tensor).collect())
    }

    /// What the optimizer keeps, which all replicas have in common, and the steps that were taken, of all and of each
    /// parameter; the buffers of the other replicas, those of other processes as well; and the split, where it was
    /// measured.
    fn extra_state(&self) -> Result<Vec<(String, Tensor)>> {
        let (id, names) = (self.id, self.descent.optimizer.state());
        let kept = move |replica: &mut Replica| Ok((replica.kept(id, names)?, replica.steps(id)));
        let (mut rest, of_each) = self.net.on_first(kept)?;
        let all = [self.descent.steps as u64];
        let steps = all.into_iter().chain(of_each).map(|steps| steps as i64);
        rest.push((STEPS.to_owned(), Tensor::from_iter(steps, &Device::Cpu)?));
        rest.extend(self.net.other_buffers()?);
        if self.net.how.split == Split::Measured && self.measuring.is_none() {
            rest.push((
                SPLIT.to_owned(),
                Tensor::new(self.net.split(), &Device::Cpu)?,
            ));
        }
        Ok(rest)
    }

    fn is_between_steps(&self) -> bool {
        self.waiting.minibatches == 0
    }

    fn check_replicas(&self, _: &[String]) -> Result<()> {
        self.net.check_replicas()
    }

    fn gradients(&self, _: &[String], _: usize) -> Result<Vec<(String, Tensor)>> {
        Trainer::gradients(self)
    }
}

impl Trainer {
    /// The gradients of the last step by the names of the parameters, in their shapes: means over the examples.
    /// None while minibatches wait for the step: each replica has its own part of the sum.
    ///
    /// # Errors
    /// If a device fails.
    pub fn gradients(&self) -> Result<Vec<(String, Tensor)>> {
        if !self.is_between_steps() {
            return Ok(Vec::new());
        }
        let sums = self.net.on_first(|replica| replica.gradients())?;
        let named = self.net.states[0].parameters().zip(sums);
        let mean = |((name, param), sum): (&(String, Var), Tensor)| {
            let mean = (sum / self.examples as f64)?;
            Ok((name.clone(), mean.reshape(param.shape())?))
        };
        named.map(mean).collect()
    }

    /// Takes up what [`TrainState::extra_state`] kept, beside what [`DataParallel::load_state_dict`] does; of nothing it
    /// begins.
    ///
    /// # Errors
    /// If it is of another network.
    pub fn go_on(&mut self, rest: HashMap<String, Tensor>) -> Result<()> {
        if let Some(steps) = rest.get(STEPS) {
            let steps: Vec<i64> = steps.to_vec1()?;
            let (all, of_each) = steps.split_first().context("steps: of none")?;
            self.descent.steps = *all as usize;
            let of_each = of_each.iter().map(|steps| *steps as u64).collect();
            self.go_on_with(&rest, of_each)?;
        }
        if let Some(split) = rest.get(SPLIT) {
            self.net.set_split(split.to_vec1()?);
            self.measuring = None;
        }
        self.net.set_other_buffers(&rest)
    }

    /// Gives all replicas what the optimizer kept, after steps of each parameter; none before the first.
    fn go_on_with(&self, rest: &HashMap<String, Tensor>, steps: Vec<u64>) -> Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        let (params, found) = (self.net.states[0].parameters().count(), steps.len());
        ensure!(
            found == params,
            "steps: of {found} parameters, the network has {params}"
        );
        let (id, names) = (self.id, self.descent.optimizer.state());
        let (rest, replicas) = (rest.clone(), vec![(); self.net.devices().len()]);
        let set = self.net.on_each(replicas, move |replica, ()| {
            replica.go_on(id, names, &rest, steps.clone())
        });
        set.context("the optimizer's state").map(|_| ())
    }
}

impl DataParallel {
    /// The number of replica `i` of this process among those of all.
    fn number(&self, i: usize) -> usize {
        self.processes.rank() * self.states.len() + i
    }

    /// The buffers of all replicas but the first, from all processes.
    fn other_buffers(&self) -> Result<Vec<(String, Tensor)>> {
        let mut own = Vec::new();
        for (i, state) in self.states.iter().enumerate() {
            for (name, buffer) in state.buffers().filter(|_| self.number(i) > 0) {
                own.push((buffer_of(self.number(i), name), buffer.copy()?.detach()));
            }
        }
        if self.processes.are_one() {
            return Ok(own);
        }
        let mut all = Vec::new();
        for bytes in self.processes.gather(&weights::to_bytes(&own, None)?)? {
            all.extend(candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)?);
        }
        Ok(all)
    }

    /// Sets the buffers that are in `rest`. The others keep their values, those of the first replica.
    fn set_other_buffers(&self, rest: &HashMap<String, Tensor>) -> Result<()> {
        for (i, state) in self.states.iter().enumerate() {
            for (name, buffer) in state.buffers() {
                if let Some(tensor) = rest.get(&buffer_of(self.number(i), name)) {
                    let tensor = d2l::to_device(tensor, buffer.device())?;
                    buffer.set(&tensor).with_context(|| name.clone())?;
                }
            }
        }
        Ok(())
    }

    /// Compares the parameters of all replicas, bit by bit, those of other processes as well.
    ///
    /// # Errors
    /// Names the first parameter that is not the same, with index, devices and both values.
    pub fn check_replicas(&self) -> Result<()> {
        let place = |i: usize| device_name(i, &self.devices()[i]);
        for (i, other) in self.states.iter().enumerate().skip(1) {
            for ((name, a), (_, b)) in self.states[0].parameters().zip(other.parameters()) {
                compare(name, (&place(0), a), (&place(i), b))?;
            }
        }
        self.check_processes()
    }

    /// An error in all processes, unless all have the same parameters: checksums first, then what differs.
    pub(crate) fn check_processes(&self) -> Result<()> {
        if self.processes.are_one() {
            return Ok(());
        }
        let params: Vec<&(String, Var)> = self.states[0].parameters().collect();
        let bytes = |param: &Var| -> Result<Vec<u8>> {
            let values = param.flatten_all()?.to_vec1::<f32>()?;
            Ok(values.iter().flat_map(|v| v.to_le_bytes()).collect())
        };
        let sum = |param: &Var| anyhow::Ok(crc32fast::hash(&bytes(param)?).to_le_bytes());
        let sums = params.iter().map(|(_, param)| sum(param));
        let sums = sums.collect::<Result<Vec<_>>>()?.concat();
        let all = self.processes.gather(&sums)?;
        let Some(other) = all.iter().position(|sums| *sums != all[0]) else {
            return Ok(());
        };
        let (of_first, of_other) = (all[0].as_chunks::<4>().0, all[other].as_chunks::<4>().0);
        let differs = of_first.iter().zip(of_other).position(|(a, b)| a != b);
        let Some((name, param)) = differs.and_then(|i| params.get(i)) else {
            bail!("the networks of process 0 and process {other} have different parameters");
        };
        let all = self.processes.gather(&bytes(param)?)?;
        let tensor =
            |i: usize| Tensor::from_raw_buffer(&all[i], DType::F32, param.dims(), &Device::Cpu);
        let places = ["process 0", &format!("process {other}")];
        compare(name, (places[0], &tensor(0)?), (places[1], &tensor(other)?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier, Mutex};

    use candle_nn::VarBuilder;
    use collective::ProcessGroup;

    use super::super::processes::Processes;
    use super::super::settings::Replication;
    use super::super::state::Initializer;
    use super::*;
    use crate::layers::Linear;

    /// Two threads that stand for processes.
    #[derive(Clone)]
    struct Two {
        rank: usize,
        brought: Arc<Mutex<[Vec<u8>; 2]>>,
        meet: Arc<Barrier>,
    }

    impl ProcessGroup for Two {
        fn rank(&self) -> usize {
            self.rank
        }

        fn size(&self) -> usize {
            2
        }

        fn all_reduce(&mut self, _: &mut [f32]) -> Result<(), collective::Error> {
            panic!("this test takes no step")
        }

        fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, collective::Error> {
            self.brought.lock().expect("no thread panicked")[self.rank] = own.to_vec();
            self.meet.wait();
            let all = self.brought.lock().expect("no thread panicked").to_vec();
            self.meet.wait(); // before one brings the next
            Ok(all)
        }

        fn duplicate(&self) -> Result<Box<dyn ProcessGroup>, collective::Error> {
            Ok(Box::new(Self {
                brought: Arc::default(),
                meet: Arc::new(Barrier::new(1)),
                ..self.clone()
            }))
        }
    }

    /// What one process says after its parameter `weight[1, 0]` has become `value`.
    fn says(world: Two, value: f32) -> Result<()> {
        let processes = Arc::new(Processes::of(Box::new(world)));
        let layer = |vb: VarBuilder<'_>| Linear::new(2, 3, vb);
        let how = Replication::default();
        let devices = [Device::Cpu];
        let init = Initializer::Normal(0.1);
        let net = DataParallel::among(&processes, how, &devices, init, 0, layer)?;
        net.check_replicas()?;
        let weight = net.states[0].get("weight").context("no weight")?;
        let mut values = weight.to_vec2::<f32>()?;
        values[1][0] = value;
        weight.set(&Tensor::new(values, &Device::Cpu)?)?;
        net.check_replicas()
    }

    #[test]
    fn processes_that_differ_are_named() {
        let zero = Two {
            rank: 0,
            brought: Arc::default(),
            meet: Arc::new(Barrier::new(2)),
        };
        let one = Two {
            rank: 1,
            ..zero.clone()
        };
        let said = std::thread::scope(|scope| {
            let said =
                [(zero, 0.5), (one, 0.75)].map(|(world, v)| scope.spawn(move || says(world, v)));
            said.map(|said| {
                said.join()
                    .expect("it did not panic")
                    .unwrap_err()
                    .to_string()
            })
        });
        let expected =
            "the replicas differ: weight[1, 0] is 0.5 on process 0 and 0.75 on process 1";
        assert_eq!(said, [expected; 2]);
    }
}
