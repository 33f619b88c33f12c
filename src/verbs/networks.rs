//! `networks`: lists the zoo, or one network layer by layer.

use crate::args::{NetworksArgs, ShapeArgs};
use crate::output::{Cell, Table};
use plimsoll_ir::Bytes;
use plimsoll_ir::network::{Network, NetworkSpec};
use plimsoll_networks::{build, entries, usual};
use plimsoll_study::Error;

/// Runs the verb.
pub fn run(args: &NetworksArgs) -> Result<Vec<Table>, Error> {
    match &args.name {
        None => Ok(vec![list()]),
        Some(name) => layers(&network(name, &args.shape)?),
    }
}

/// Builds a network for the images that it was published for, except for the given sizes.
pub fn network(name: &str, shape: &ShapeArgs) -> Result<Network, Error> {
    let ShapeArgs { image, channels, classes } = *shape;
    // An unknown name is built all the same: the error proposes the nearest names.
    let anything = NetworkSpec { name: name.to_owned(), image: [224; 2], channels: 3, classes: 1000 };
    let usual = usual(name).unwrap_or(anything);
    let spec = NetworkSpec {
        image: image.map_or(usual.image, |i| i.0),
        channels: channels.unwrap_or(usual.channels),
        classes: classes.unwrap_or(usual.classes),
        ..usual
    };
    Ok(build(&spec)?)
}

fn list() -> Table {
    let mut table = Table::new(
        "networks",
        &[("name", "name"), ("image", "image"), ("classes", "classes"), ("about", "about")],
    );
    for entry in entries() {
        let image = format!("{}x{}x{}", entry.image[0], entry.image[1], entry.channels);
        table.rows.push(vec![
            entry.name.into(),
            image.into(),
            u64::from(entry.classes).into(),
            entry.about.into(),
        ]);
    }
    table
}

fn layers(network: &Network) -> Result<Vec<Table>, Error> {
    let mut table = Table::new(
        "layers",
        &[
            ("name", "layer"),
            ("kind", "kind"),
            ("output", "output"),
            ("parameters", "parameters"),
            ("forward_flops", "MFLOP"),
            ("feature_map_bytes", "feature map"),
        ],
    );
    let mut bytes = Bytes::ZERO;
    for layer in &network.layers {
        let map = Bytes(4 * layer.output.elements());
        bytes += map;
        table.rows.push(vec![
            layer.name.clone().into(),
            layer.kind.name().into(),
            layer.output.to_string().into(),
            layer.parameters.into(),
            Cell::Number(layer.forward_flops as f64 / 1e6, 2),
            map.into(),
        ]);
    }
    let total = Table::facts(
        "network",
        vec![
            ("name", "network", network.spec.name.clone().into()),
            ("layers", "layers", (network.layers.len() as u64).into()),
            ("parameters", "parameters", network.all_parameters().into()),
            ("forward_flops", "forward FLOPs, one sample", network.all_forward_flops().into()),
            ("feature_map_bytes", "feature maps, one sample", bytes.into()),
        ],
    );
    Ok(vec![table, total])
}
