//! The parameters and buffers of a network, taken and set, and in files.

use std::path::Path;

use candle_core::{Result, Tensor, Var};
use devices::{Context, ensure, retry_with_empty_cache};
use training::weights;

use super::DataParallel;
use crate::agreement::check_processes;
use crate::network_state::NetworkState;

impl DataParallel {
    /// Everything that device 0 holds, parameters and buffers, in the network's order and under
    /// PyTorch's names. While another thread trains, it is that between two steps.
    pub fn state_dict(&self) -> Result<Vec<(String, Tensor)>> {
        fn copies(state: &NetworkState) -> Result<Vec<(String, Tensor)>> {
            let copy = |(name, var): &(String, Var)| {
                let copy = retry_with_empty_cache(|| var.copy())?;
                Ok((name.clone(), copy.detach()))
            };
            state.all().iter().map(copy).collect()
        }
        if self.takes_no_steps_now() {
            return copies(&self.states[0]);
        }
        self.on_first(|replica| copies(&replica.state))
    }

    /// The tensors of [`state_dict`](Self::state_dict), not copied: later steps change their values.
    pub(crate) fn tensors(&self) -> Vec<(String, Tensor)> {
        let all = self.states[0].all().iter();
        all.map(|(name, var)| (name.clone(), var.as_tensor().clone()))
            .collect()
    }

    /// Sets parameters and buffers of all replicas by their names, as [`state_dict`](Self::state_dict) has them. The running
    /// statistics of the other replicas are in [`Trainer::state_dict`](crate::Trainer::state_dict), which is loaded after
    /// this. What batch norms count (`num_batches_tracked`) may be missing, or too much.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// let net = DataParallel::new(&devices(2)?, Initializer::Normal(0.01), 0, |vb| {
    ///     Linear::new(2, 1, vb.pp("fc"))
    /// })?;
    /// let mut state = net.state_dict()?;
    /// state[0].1 = state[0].1.zeros_like()?; // fc.weight
    /// net.load_state_dict(&state)?;
    /// assert_eq!(net.parameter("fc.weight", 1)?.to_vec2::<f32>()?, [[0.0, 0.0]]);
    /// # data_parallel::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Names a tensor that is missing, that the network does not have, or that has another shape; and one with NaN, infinity,
    /// or a running variance below 0. Then nothing was changed. And in a loss, a metric or a layer of this network.
    pub fn load_state_dict(&self, state: &[(String, Tensor)]) -> Result<()> {
        self.set_state(state)?;
        self.statistics.network_is_loaded();
        Ok(())
    }

    /// As [`load_state_dict`](Self::load_state_dict), where all replicas are to have the statistics of the first.
    pub(crate) fn set_state(&self, state: &[(String, Tensor)]) -> Result<()> {
        ensure!(
            !self.workers.network.is_here(),
            "a loss, a metric or a layer sets the parameters of the network that it is computed for; set them between steps"
        );
        let mut found = state.iter().cloned().collect();
        let own = self.tensors();
        weights::settle_counts(&mut found, &own)?;
        let tensors = weights::take(found, &own)?;
        let set = move |state: &NetworkState| {
            for ((name, var), tensor) in state.all().iter().zip(&tensors) {
                let tensor = devices::to_device(tensor, var.device())?;
                var.set(&tensor).with_context(|| name.clone())?;
            }
            Ok(())
        };
        if self.has_failed() {
            self.states.iter().try_for_each(set)?;
        } else {
            // between two steps of another thread
            let k = self.devices.len();
            self.on_each(vec![(); k], move |replica, ()| set(&replica.state))?;
        }
        check_processes(&self.processes, &self.states[0])
    }

    /// Writes parameters and buffers to a safetensors file, under PyTorch's names.
    ///
    /// The file appears whole or not at all. Symbolic links are followed, and the permissions of a file that is there stay.
    /// A program that is killed here leaves a hidden file, `.NAME.….partial`. The next `save` to this path removes it when it
    /// is an hour old.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// let net = |seed| {
    ///     let devices = devices(2)?;
    ///     DataParallel::new(&devices, Initializer::Normal(0.01), seed, |vb| Linear::new(2, 1, vb))
    /// };
    /// let (folder, first, second) = (tempfile::tempdir()?, net(0)?, net(1)?);
    /// let best = folder.path().join("best.safetensors");
    /// first.save(&best)?;
    /// second.load(&best)?;
    /// let weight = |net: &DataParallel| candle_core::Result::Ok(net.parameter("weight", 1)?.to_vec2::<f32>()?);
    /// assert_eq!(weight(&first)?, weight(&second)?);
    /// # data_parallel::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the replicas of this process differ, or a number is NaN or infinite, in parameters or in the buffers of any
    /// replica: then a file that was there stays. And if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.check_replicas_here()?;
        self.check_buffers()?;
        weights::save(path.as_ref(), &self.state_dict()?)
    }

    /// Reads what [`save`](Self::save) wrote, or PyTorch's `safetensors.torch.save_file`. What batch norms count
    /// (`num_batches_tracked`) may be missing, or too much.
    ///
    /// # Errors
    /// If the file cannot be read; and as [`load_state_dict`](Self::load_state_dict).
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let own = self.tensors();
        let names = own.iter().map(|(name, _)| name.clone());
        let tensors = weights::load(path.as_ref(), &own)?;
        self.load_state_dict(&names.zip(tensors).collect::<Vec<_>>())
    }
}
