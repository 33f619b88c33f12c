//! Weights in files: those that a training starts from, of a safetensors or an ONNX file, and those that came of one.
//!
//! A safetensors file has the tensors of a network of the zoo as [`plimsoll_networks::file_tensors`] names them, in f32, as
//! PyTorch's `state_dict` of a network with the same names. Those of a network from an ONNX file have the names and shapes of
//! that file's initialisers ([`crate::onnx::written`]); the names of layers are read, too. Counters of batches that PyTorch's
//! batch normalisations keep (`num_batches_tracked`) may be there and are not read. An ONNX file has the same layers as the
//! file from which the network was read. A tensor that it lacks, such as the shift of a normalisation without one, starts fresh
//! and is named.
//!
//! What it deliberately does not do: read a part of the tensors, or other types: what a training starts from would be a guess.

use crate::error::{Doing, FileError, OtherTensors, WeightsError};
use crate::folder::Study;
use crate::{files, onnx};
use plimsoll_ir::checksum::Summing;
use plimsoll_ir::network::Network;
use plimsoll_networks::onnx::name_in_file;
use plimsoll_networks::{FileTensor, LayerTensor, file_tensors};
use plimsoll_runtime::{Checkpoint, Weights};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// What PyTorch counts in each of its batch normalisations, of no use here.
const COUNTER: &str = "num_batches_tracked";

/// Reads the weights that a training starts from, which must be those of this network; of one from an ONNX file the study keeps
/// the architecture.
///
/// # Errors
///
/// The file cannot be read, is of another kind, or has other tensors than the network.
pub fn read(path: &Path, network: &Network, study: &Study) -> Result<Weights, WeightsError> {
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("onnx")) {
        return read_onnx(path, network);
    }
    let bytes = std::fs::read(path).map_err(|error| FileError::io(path, Doing::Read, error))?;
    let foreign = |error: safetensors::SafeTensorError| WeightsError::Foreign {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let found = SafeTensors::deserialize(&bytes).map_err(foreign)?;
    let wanted = named_as(&found, [onnx::written(network, study)?.tensors, file_tensors(network)])
        .map_err(|differ| WeightsError::Other { path: path.to_owned(), differ })?;
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
        for part in &tensor.parts {
            let bytes = part.of.elements as usize * size_of::<f32>();
            let region = regions.entry(saved_name(&part.of)).or_insert_with(|| vec![0; bytes]);
            part.to_device(view.data(), region);
        }
    }
    Ok(Weights { regions, checksum: sum.sum().to_string() })
}

/// The way to name tensors in which a file has all of them; else in what it differs from the one that it is nearest to.
fn named_as(found: &SafeTensors<'_>, ways: [Vec<FileTensor>; 2]) -> Result<Vec<FileTensor>, OtherTensors> {
    let mut nearest: Option<OtherTensors> = None;
    for tensors in ways {
        let differ = OtherTensors::between(&tensors, found);
        if differ.is_empty() {
            return Ok(tensors);
        }
        if nearest.as_ref().is_none_or(|other| differ.count() < other.count()) {
            nearest = Some(differ);
        }
    }
    Err(nearest.unwrap_or_default())
}

/// The same of an ONNX file.
fn read_onnx(path: &Path, network: &Network) -> Result<Weights, WeightsError> {
    let (file, name) = (path.to_owned(), network.spec.name.clone());
    if name_in_file(&name).is_none() {
        return Err(WeightsError::OfZoo { path: file, network: name });
    }
    let Some(mut found) = onnx::weights(path, network)? else {
        return Err(WeightsError::OtherLayers { path: file, network: name });
    };
    let (mut regions, mut sum) = (BTreeMap::new(), Summing::default());
    for tensor in file_tensors(network) {
        let Some(numbers) = found.remove(&tensor.name) else {
            tracing::info!("{} has no `{}`, which starts fresh", path.display(), tensor.name);
            continue;
        };
        let bytes: Vec<u8> = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
        sum.add(tensor.name.as_bytes());
        sum.add(&bytes);
        regions.extend(tensor.parts.iter().map(|part| (saved_name(&part.of), bytes.clone())));
    }
    Ok(Weights { regions, checksum: sum.sum().to_string() })
}

/// Writes the weights of a training's state as these tensors.
///
/// # Errors
///
/// The state is of another network, or the file cannot be written.
pub fn write(path: &Path, tensors: &[FileTensor], state: &Checkpoint) -> Result<(), WeightsError> {
    let mut all = Vec::new();
    for tensor in tensors {
        let mut data = vec![0; tensor.elements() as usize * size_of::<f32>()];
        for part in &tensor.parts {
            let bytes = part.of.elements as usize * size_of::<f32>();
            let saved = state.region_bytes(&saved_name(&part.of)).filter(|saved| saved.len() == bytes);
            let saved = saved.ok_or_else(|| {
                let (path, name) = (path.to_owned(), part.of.name.clone());
                WeightsError::OtherNetwork { path, name }
            })?;
            part.to_file(saved, &mut data);
        }
        let shape = tensor.shape.iter().map(|length| *length as usize).collect::<Vec<_>>();
        all.push((tensor.name.as_str(), shape, data));
    }
    let views = all.iter().map(|(name, shape, data)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), data);
        (name, view.expect("the bytes of its shape"))
    });
    // Other tools ask for this.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = serialize(views, Some(metadata)).expect("names are distinct, and data are there");
    Ok(files::write_bytes(path, &bytes)?)
}

/// The name of a tensor's region in a training's state.
fn saved_name(tensor: &LayerTensor) -> String {
    format!("{}/{}", if tensor.trained { "parameter" } else { "state" }, tensor.name)
}

impl OtherTensors {
    /// All in which a file's tensors differ from those of a network.
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
        self.count() == 0
    }

    fn count(&self) -> usize {
        [&self.missing, &self.superfluous, &self.shapes, &self.types].iter().map(|names| names.len()).sum()
    }
}
