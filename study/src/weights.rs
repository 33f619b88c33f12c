//! Weights in safetensors files: initial weights of a training, and its results.
//!
//! A file has the tensors of a network as [`plimsoll_networks::file_tensors`] names them, in f32, like PyTorch's `state_dict`
//! of a network with the same names. The batch counters of PyTorch's batch normalisations (`num_batches_tracked`) may be
//! present and are not read.
//!
//! This file deliberately reads no subset of the tensors and no other types: the initial weights would then be a guess.

use crate::error::Error;
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
/// The file cannot be read, is of a different kind, or has tensors other than the network's.
pub fn read(path: &Path, network: &Network) -> Result<Weights, Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::io(path, "read", &error))?;
    let file = path.display();
    let foreign = |error: safetensors::SafeTensorError| {
        Error::usage(format_args!("{file} is not a safetensors file, or is truncated ({error})")).help(
            "save the weights with safetensors.torch.save_file, or with `plimsoll export --to safetensors`",
        )
    };
    let found = SafeTensors::deserialize(&bytes).map_err(foreign)?;
    let wanted = file_tensors(network);
    let differ = difference(&wanted, &found);
    if !differ.is_empty() {
        let message = format!("the tensors of {file} are not those of the network: {differ}");
        return Err(Error::usage(message).help(
            "tensors have the names of the network's layers, which `plimsoll networks NAME` lists, and PyTorch's shapes, in \
             f32; rename or convert them in the file",
        ));
    }
    let mut regions: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut sum = Summing::default();
    for tensor in &wanted {
        let view = found.tensor(&tensor.name).map_err(foreign)?;
        if !view.data().as_chunks().0.iter().all(|four| f32::from_le_bytes(*four).is_finite()) {
            let name = &tensor.name;
            return Err(Error::usage(format_args!("{file} holds a number in `{name}` that is not finite"))
                .help("a training cannot start from it; take other weights"));
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
pub fn write(path: &Path, tensors: &[FileTensor], state: &Checkpoint) -> Result<(), Error> {
    let mut all = Vec::new();
    for tensor in tensors {
        let bytes = tensor.elements() as usize * size_of::<f32>();
        let saved = state.region_bytes(&saved_name(tensor)).filter(|saved| saved.len() == bytes);
        let saved = saved.ok_or_else(|| {
            let (file, name) = (path.display(), &tensor.name);
            Error::usage(format_args!(
                "the training's state has no `{name}` of the network's size, so nothing is written to {file}"
            ))
            .help("export the study that the training was made in")
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
    files::write_bytes(path, &bytes)
}

/// Returns the name of a tensor's region in a training's state.
fn saved_name(tensor: &FileTensor) -> String {
    format!("{}/{}", if tensor.trained { "parameter" } else { "state" }, tensor.name)
}

/// Maximum number of names of a kind that are shown.
const SHOWN: usize = 6;

/// Describes the difference between a file's tensors and those of a network; empty if they match.
fn difference(wanted: &[FileTensor], found: &SafeTensors<'_>) -> String {
    let names: HashSet<&str> = wanted.iter().map(|tensor| tensor.name.as_str()).collect();
    let counts = |name: &str| name.rsplit('.').next() == Some(COUNTER);
    let superfluous = found.names().into_iter().filter(|name| !names.contains(name) && !counts(name));
    let mut superfluous: Vec<String> = superfluous.map(str::to_owned).collect();
    superfluous.sort_unstable();
    let (mut missing, mut shapes, mut types) = (Vec::new(), Vec::new(), Vec::new());
    for tensor in wanted {
        let Ok(view) = found.tensor(&tensor.name) else {
            missing.push(tensor.name.clone());
            continue;
        };
        let shape: Vec<u64> = view.shape().iter().map(|length| *length as u64).collect();
        if !tensor.fits(&shape) {
            shapes.push(format!("{} {shape:?} instead of {:?}", tensor.name, tensor.shape));
        } else if view.dtype() != Dtype::F32 {
            types.push(format!("{} {:?}", tensor.name, view.dtype()));
        }
    }
    let kinds = [
        ("missing", missing),
        ("superfluous", superfluous),
        ("of another shape", shapes),
        ("not in f32", types),
    ];
    let shown = kinds.iter().filter(|(_, names)| !names.is_empty()).map(|(kind, names)| {
        let more = if names.len() > SHOWN { ", ..." } else { "" };
        format!("{} {kind}: {}{more}", names.len(), names[..names.len().min(SHOWN)].join(", "))
    });
    shown.collect::<Vec<_>>().join("; ")
}
