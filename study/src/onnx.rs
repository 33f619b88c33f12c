//! Networks from ONNX files, as far as files go: reading one, with what it keeps beside it, and the copy in a study.
//!
//! A study keeps the architecture, so that `run` and a second `auto` need the file no more, and know whether it is still the
//! one that was measured: the network's name ends with a hash of it. Weights are read for a training alone ([`weights`]).

use crate::error::{Doing, FileError, OnnxFileError};
use crate::files;
use crate::folder::Study;
use plimsoll_ir::network::{Network, NetworkSpec};
use plimsoll_networks::file_tensors;
use plimsoll_networks::onnx::{External, OnnxError, OnnxNetwork, OnnxSource, Written, name_in_file, read};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// No ONNX file is larger: protocol buffers end here, and exporters put the weights of larger networks into files beside it.
const BYTES_MAX: u64 = 1 << 31;

/// Reads the network of a file, for images of this size where the file leaves it open.
pub fn network(path: &Path, image: Option<[u32; 2]>) -> Result<OnnxNetwork, OnnxFileError> {
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let found = read_as(path, &name, image)?;
    for note in &found.notes {
        tracing::info!("{}: {note}", path.display());
    }
    tracing::info!("{}: the architecture is read, and no weights yet", path.display());
    Ok(found)
}

/// The network that a spec names: one of the zoo, or one from a file of which the study in this folder keeps the architecture.
pub fn rebuilt(spec: &NetworkSpec, folder: &Path) -> Result<Network, OnnxFileError> {
    let Some(name) = name_in_file(&spec.name) else { return Ok(plimsoll_networks::build(spec)?) };
    let path = kept(spec, &Study::at(folder))?;
    let found = read_as(&path, name, Some(spec.image))?;
    if found.network.spec != *spec {
        return Err(OnnxFileError::Replaced { network: spec.name.clone(), path });
    }
    Ok(found.network)
}

/// The weights that a file has for a network, by layer and part, as they lie on the device; none where the file is of another
/// network.
pub fn weights(path: &Path, network: &Network) -> Result<Option<BTreeMap<String, Vec<f32>>>, OnnxFileError> {
    opened(path, "", Some(network.spec.image), |source| plimsoll_networks::onnx::weights(source, network))
}

/// The tensors of a network as files of weights have them: for one from a file, of which this study keeps the architecture, as
/// that file's initialisers, where that can be, and with notes where it cannot; for one of the zoo as its layers have them.
pub fn written(network: &Network, study: &Study) -> Result<Written, OnnxFileError> {
    let spec = &network.spec;
    if name_in_file(&spec.name).is_none() {
        return Ok(Written { tensors: file_tensors(network), notes: Vec::new() });
    }
    let path = kept(spec, study)?;
    let found =
        opened(&path, "", Some(spec.image), |source| plimsoll_networks::onnx::written(source, network))?;
    found.ok_or_else(|| OnnxFileError::Replaced { network: spec.name.clone(), path })
}

/// Where a study keeps the architecture of a network from a file, which must be there.
fn kept(spec: &NetworkSpec, study: &Study) -> Result<PathBuf, OnnxFileError> {
    let path = study.architecture();
    if path.exists() { Ok(path) } else { Err(OnnxFileError::NotKept { network: spec.name.clone(), path }) }
}

/// Keeps the architecture in a study's folder; where another is kept there only if all is to be `fresh`, and nothing was
/// trained with that one.
pub fn keep(study: &Study, architecture: &[u8], fresh: bool) -> Result<(), OnnxFileError> {
    let path = study.architecture();
    match fs::read(&path) {
        Ok(there) if there == architecture => return Ok(()),
        Ok(_) if !fresh => return Err(OnnxFileError::KeepsAnother(path)),
        Ok(_) => study.without_training()?,
        Err(_) => {}
    }
    Ok(files::write_bytes(&path, architecture)?)
}

fn read_as(path: &Path, name: &str, image: Option<[u32; 2]>) -> Result<OnnxNetwork, OnnxFileError> {
    opened(path, name, image, read)
}

/// What is read of a file, with the files beside it.
fn opened<T>(
    path: &Path,
    name: &str,
    image: Option<[u32; 2]>,
    read: impl FnOnce(OnnxSource<'_>) -> Result<T, OnnxError>,
) -> Result<T, OnnxFileError> {
    let failed = |error: std::io::Error| FileError::io(path, Doing::Read, error);
    let metadata = fs::metadata(path).map_err(failed)?;
    if metadata.is_dir() {
        return Err(OnnxFileError::Folder(path.to_owned()));
    }
    if metadata.len() > BYTES_MAX {
        return Err(OnnxFileError::TooLarge(path.to_owned()));
    }
    let mut file = Vec::new();
    // A pipe may hold more than it says.
    File::open(path).and_then(|open| open.take(BYTES_MAX).read_to_end(&mut file)).map_err(failed)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let external = |wanted: &External| beside(folder, wanted);
    read(OnnxSource { file, name, image, external: &external })
        .map_err(|source| OnnxFileError::Unreadable { path: path.to_owned(), source })
}

/// Part of a file in a folder, links that lead out of which are refused.
fn beside(folder: &Path, wanted: &External) -> Result<Vec<u8>, String> {
    let words = |error: std::io::Error| error.to_string();
    let folder = fs::canonicalize(folder).map_err(words)?;
    let path = fs::canonicalize(folder.join(&wanted.location)).map_err(words)?;
    if !path.starts_with(&folder) {
        return Err(
            "it is a link to outside the folder of the ONNX file; put the file itself there".to_owned()
        );
    }
    let mut file = File::open(&path).map_err(words)?;
    let metadata = file.metadata().map_err(words)?;
    let end = wanted.offset.checked_add(wanted.length);
    if !metadata.is_file() || end.is_none_or(|end| end > metadata.len()) {
        let (offset, length) = (wanted.offset, wanted.length);
        return Err(format!("it does not hold {length} bytes at {offset}; copy it again"));
    }
    file.seek(SeekFrom::Start(wanted.offset)).map_err(words)?;
    let mut bytes = Vec::new();
    file.take(wanted.length).read_to_end(&mut bytes).map_err(words)?;
    Ok(bytes)
}
