//! Weights in safetensors files: initial weights of a training, and its results.
//!
//! A file has the tensors of a network as [`plimsoll_networks::file_tensors`] names them, in f32, like PyTorch's `state_dict`
//! of a network with the same names. The batch counters of PyTorch's batch normalisations (`num_batches_tracked`) may be
//! present and are not read.
//!
//! This file deliberately reads no subset of the tensors and no other types: the initial weights would then be a guess.

use crate::error::{Doing, FileError, OtherTensors, WeightsError};
use crate::files;
use plimsoll_ir::checksum::Summing;
use plimsoll_ir::network::Network;
use plimsoll_networks::{FileTensor, file_tensors};
use plimsoll_runtime::{Checkpoint, Weights};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// Counter in each of PyTorch's batch normalisations, unused here.
const COUNTER: &str = "num_batches_tracked";

/// Reads a training's initial weights, which must be those of this network.
///
/// # Errors
///
/// The file cannot be read, has a different format, or has different tensors from the network's.
pub fn read(path: &Path, network: &Network) -> Result<Weights, WeightsError> {
    let bytes = std::fs::read(path).map_err(|error| FileError::io(path, Doing::Read, error))?;
    let foreign = |error: safetensors::SafeTensorError| WeightsError::Foreign {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let found = SafeTensors::deserialize(&bytes).map_err(foreign)?;
    let wanted = file_tensors(network);
    let differ = OtherTensors::between(&wanted, &found);
    if !differ.is_empty() {
        return Err(WeightsError::Other { path: path.to_owned(), differ });
    }
    let mut regions: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut sum = Summing::default();
    for tensor in &wanted {
        let view = found.tensor(&tensor.name).map_err(foreign)?;
        if !view.data().as_chunks().0.iter().all(|four| f32::from_le_bytes(*four).is_finite()) {
            let name = tensor.name.clone();
            return Err(WeightsError::NotFinite { path: path.to_owned(), name });
        }
        sum.add(tensor.name.as_bytes());
        sum.add(view.data());
        regions.insert(saved_name(tensor), tensor.to_device(view.data()));
    }
    Ok(Weights { regions, checksum: sum.sum().to_string() })
}

/// Writes the weights of a training's state as these tensors.
///
/// # Errors
///
/// The state is of a different network, or the file cannot be written.
pub fn write(path: &Path, tensors: &[FileTensor], state: &Checkpoint) -> Result<(), WeightsError> {
    let mut all = Vec::new();
    for tensor in tensors {
        let bytes = tensor.elements() as usize * size_of::<f32>();
        let saved = state.region_bytes(&saved_name(tensor)).filter(|saved| saved.len() == bytes);
        let saved = saved.ok_or_else(|| {
            let (path, name) = (path.to_owned(), tensor.name.clone());
            WeightsError::OtherNetwork { path, name }
        })?;
        let shape = tensor.shape.iter().map(|length| *length as usize).collect::<Vec<_>>();
        all.push((tensor.name.as_str(), shape, tensor.to_file(saved)));
    }
    let views = all.iter().map(|(name, shape, data)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), data);
        (name, view.expect("the bytes of its shape"))
    });
    // Other tools require this entry.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = serialize(views, Some(metadata)).expect("names are distinct, and data are there");
    Ok(files::write_bytes(path, &bytes)?)
}

/// Returns the name of a tensor's region in a training's state.
fn saved_name(tensor: &FileTensor) -> String {
    format!("{}/{}", if tensor.trained { "parameter" } else { "state" }, tensor.name)
}

impl OtherTensors {
    /// Lists all differences between a file's tensors and those of a network.
    fn between(wanted: &[FileTensor], found: &SafeTensors<'_>) -> OtherTensors {
        let names: HashSet<&str> = wanted.iter().map(|tensor| tensor.name.as_str()).collect();
        let counts = |name: &str| name.rsplit('.').next() == Some(COUNTER);
        let mut differ = OtherTensors {
            superfluous: found
                .names()
                .into_iter()
                .filter(|name| !names.contains(name) && !counts(name))
                .map(str::to_owned)
                .collect(),
            ..OtherTensors::default()
        };
        differ.superfluous.sort_unstable();
        for tensor in wanted {
            let Ok(view) = found.tensor(&tensor.name) else {
                differ.missing.push(tensor.name.clone());
                continue;
            };
            let shape: Vec<u64> = view.shape().iter().map(|length| *length as u64).collect();
            if !tensor.fits(&shape) {
                differ.shapes.push(format!("{} {shape:?} instead of {:?}", tensor.name, tensor.shape));
            } else if view.dtype() != Dtype::F32 {
                differ.types.push(format!("{} {:?}", tensor.name, view.dtype()));
            }
        }
        differ
    }

    fn is_empty(&self) -> bool {
        [&self.missing, &self.superfluous, &self.shapes, &self.types].iter().all(|names| names.is_empty())
    }
}
