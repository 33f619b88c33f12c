//! `trace`: one training iteration of a network as `trace/1`.

use crate::args::{DeviceChoice, ReluArg, TraceArgs};
use crate::files;
use crate::output::Table;
use crate::verbs::networks::network;
use plimsoll_ir::Precision;
use plimsoll_ir::network::Network;
use plimsoll_ir::profile::{Machine, Profile};
use plimsoll_ir::program::Call;
use plimsoll_ir::trace::Trace;
use plimsoll_networks::{LowerOptions, Mode, ReluStorage, lower};
use plimsoll_runtime::CpuOptions;
use plimsoll_study::device::{is_cpu, of_processor};
use plimsoll_study::measure::may_be_off;
use plimsoll_study::{Error, Setup};
use plimsoll_tuner::model::Model;
use plimsoll_tuner::model::devices::{self, Modelled, Sheet};
use std::path::Path;

/// Separator between a trace's name and the modelled device of its times: trace/1 has no field for the device.
pub const MODELLED: &str = "-modelled-";

/// Precisions that end a trace's name, after a modelled device if there is one; f32 adds nothing.
const SAID: [Precision; 3] = [Precision::Tf32Convolutions, Precision::Tf32, Precision::Bf16];

/// Suffix of a trace's name for a precision.
fn said(precision: Precision) -> String {
    if SAID.contains(&precision) { format!("-{}", precision.name()) } else { String::new() }
}

/// Modelled device of a trace's times; `None` without one, or if it is unknown here.
pub fn modelled_device(trace: &Trace) -> Option<Modelled> {
    let (_, device) = trace.name.rsplit_once(MODELLED)?;
    let of = |precision: Precision| device.strip_suffix(&said(precision)).map(|name| (name, precision));
    let (name, precision) = SAID.into_iter().find_map(of).unwrap_or((device, Precision::F32));
    Some(Modelled { precision, ..Modelled::new(devices::sheet(name)?) })
}

/// Warning about a trace with times of a modelled device.
pub fn of_a_model(trace: &Trace) -> Option<String> {
    trace.name.contains(MODELLED).then(|| {
        let off = may_be_off(modelled_device(trace).map(|device| device.error()));
        format!(
            "the trace's times are those of a model of a device that is not here: nothing was measured; {off}"
        )
    })
}

/// Runs the verb. The trace goes to its file or to stdout; returns no tables.
pub fn run(args: &TraceArgs) -> Result<Vec<Table>, Error> {
    if let Some(output) = args.output.as_ref().filter(|output| !files::is_standard(output)) {
        args.profile.iter().try_for_each(|input| files::not_the_same(input, output))?;
        files::can_be_made(output)?;
    }
    let network = network(&args.name, &args.shape)?;
    match args.device {
        Some(DeviceChoice::Modelled(sheet)) => return modelled(args, sheet, &network),
        Some(_) => {
            return Err(Error::usage("only a device that is modelled gives times without a measurement")
                .help(
                    "measure with `plimsoll profile --device cpu|cuda`, and give its file with --profile",
                ));
        }
        None => {}
    }
    let profile: Option<Profile> = args.profile.as_deref().map(files::read).transpose()?;
    let machine = profile.as_ref().map(|p| &p.machine);
    if machine.is_some_and(|machine| machine.modelled) {
        return Err(Error::usage("the profile is of a device that is modelled, not measured")
            .help(format!("ask the model itself: --device {}", devices::names().replace(", ", "|"))));
    }
    let asked = args.kernels.precision.asked();
    let of_gpu = machine.is_some_and(|machine| !is_cpu(&machine.device));
    if !of_gpu {
        // A precision that the device never has is refused before the profile is compared.
        of_processor(asked)?;
    }
    let precision = machine.map_or(Ok(asked), |machine| in_profile(machine, asked).map(Some))?;
    let deterministic = args.kernels.deterministic;
    if deterministic && !of_gpu {
        let message = "--deterministic is for the --profile of a GPU";
        return Err(Error::usage(message).help("leave it out"));
    }
    let setup = if of_gpu {
        Setup::cuda(0, true, deterministic, precision)
            .map_err(|error| error.help("the profile is of a GPU, whose libraries are asked"))?
    } else {
        let (threads, feature_maps) = (machine.map_or(1, |m| m.threads), of_processor(precision)?);
        Setup::Cpu(CpuOptions { threads, feature_maps, ..CpuOptions::default() })
    };
    let feature_maps = setup.precision().feature_maps();
    let alternatives = |call: &Call| setup.alternatives(call);
    let (mode, relu, alternatives) = (Mode::Train, args.relu.into(), &alternatives);
    let (optimizer, fuse, more) = (args.optimizer.optimizer.into(), true, LowerOptions::default());
    let options = LowerOptions { mode, relu, optimizer, feature_maps, fuse, alternatives, ..more };
    let mut trace = lower(&network, args.batch, &options)?.trace;
    trace.name += &said(precision.unwrap_or_default());
    if let Some(profile) = profile {
        let model = Model::fit(&profile)?;
        model.fill(&mut trace)?;
    }
    write(args, &trace)
}

/// Precision of a profile; a request for a different one is an error. Older versions left f32 out.
fn in_profile(machine: &Machine, asked: Option<Precision>) -> Result<Precision, Error> {
    let measured = machine.precision.unwrap_or(Precision::F32);
    if let Some(asked) = asked.filter(|asked| *asked != measured) {
        let message = format!("the profile was measured in {measured}, and --precision asks for {asked}");
        return Err(Error::usage(message).help("leave --precision out, or measure again with it"));
    }
    Ok(measured)
}

/// Trace with times of a modelled device, which its name shows.
fn modelled(args: &TraceArgs, sheet: &'static Sheet, network: &Network) -> Result<Vec<Table>, Error> {
    let precision = args.kernels.precision_alone().map_err(|failure| failure.help("leave it out"))?;
    let setup = Setup::modelled(sheet, precision)?;
    let device = setup.model().expect("it was just modelled");
    let alternatives = |call: &Call| device.alternatives(call);
    let (mode, relu, feature_maps) = (Mode::Train, args.relu.into(), device.precision.feature_maps());
    let (fuse, alternatives) = (setup.fuses(), &alternatives);
    let (optimizer, more) = (args.optimizer.optimizer.into(), LowerOptions::default());
    let options = LowerOptions { mode, relu, optimizer, feature_maps, fuse, alternatives, ..more };
    let mut program = lower(network, args.batch, &options)?;
    device.fill(&mut program);
    program.trace.name += &format!("{MODELLED}{}{}", sheet.name, said(device.precision));
    of_a_model(&program.trace).inspect(|words| tracing::warn!("{words}"));
    write(args, &program.trace)
}

fn write(args: &TraceArgs, trace: &Trace) -> Result<Vec<Table>, Error> {
    files::write(args.output.as_deref().unwrap_or(Path::new(files::STANDARD)), trace)?;
    Ok(Vec::new())
}

impl From<ReluArg> for ReluStorage {
    fn from(arg: ReluArg) -> ReluStorage {
        match arg {
            ReluArg::Auto => ReluStorage::Auto,
            ReluArg::Output => ReluStorage::Output,
            ReluArg::Mask => ReluStorage::Mask,
        }
    }
}
