//! Waits that need an event: those that neither stream order nor another wait implies.

use plimsoll_ir::CommandId;
use plimsoll_ir::schedule::{Duplex, Schedule};

/// For each command, the commands of other streams that need an explicit wait. On a half-duplex link a transfer also waits
/// for the previous transfer in list order.
///
/// A vector clock (how many commands of each stream have ended) holds what a command's waits imply. Waits are taken latest
/// first; a wait that the clock already covers needs no event.
pub(crate) fn crossing_waits(schedule: &Schedule) -> Vec<Vec<CommandId>> {
    let half = schedule.link.duplex == Duplex::Half;
    let mut latest = [[0u32; 3]; 3];
    let mut last_transfer = None;
    let mut clocks: Vec<[u32; 3]> = Vec::with_capacity(schedule.commands.len());
    let mut crossing = Vec::with_capacity(schedule.commands.len());
    for (id, command) in schedule.numbered_commands() {
        let stream = command.stream();
        let mut clock = latest[stream.index()];
        let mut waits = command.waits().to_vec();
        if half && command.transfer().is_some() {
            waits.extend(last_transfer.replace(id));
        }
        waits.sort_unstable_by(|a, b| b.cmp(a));
        waits.retain(|wait| {
            let on = schedule.commands[wait.index()].stream().index();
            let other = clocks[wait.index()];
            let needed = clock[on] < other[on];
            clock.iter_mut().zip(other).for_each(|(mine, theirs)| *mine = theirs.max(*mine));
            needed
        });
        clock[stream.index()] += 1;
        latest[stream.index()] = clock;
        clocks.push(clock);
        crossing.push(waits);
    }
    crossing
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::Document;

    fn check(duplex: &str, commands: &[(&str, &[u32])], expected: &[&[u32]]) {
        let command = |(stream, waits): &(&str, &[u32])| match *stream {
            "compute" => format!(r#"{{"do": "compute", "op": 0, "waits": {waits:?}}}"#),
            other => format!(r#"{{"do": "{other}", "tensor": 0, "waits": {waits:?}}}"#),
        };
        let commands: Vec<String> = commands.iter().map(command).collect();
        let text = format!(
            r#"{{"plimsoll": "schedule/1", "trace": "t", "batch": 1, "budget_bytes": 0, "pool_bytes": 0,
            "link": {{"offload_bytes_per_second": 1.0, "prefetch_bytes_per_second": 1.0, "duplex": "{duplex}"}},
            "commands": [{}], "buffers": []}}"#,
            commands.join(", ")
        );
        let schedule = Schedule::from_json(&text).expect("the text is a schedule");
        let found: Vec<Vec<u32>> =
            crossing_waits(&schedule).iter().map(|w| w.iter().map(|c| c.0).collect()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn only_waits_that_nothing_implies_remain() {
        let (c, o, p) = ("compute", "offload", "prefetch");
        check("full", &[(c, &[]), (c, &[0])], &[&[], &[]]);
        check("full", &[(c, &[]), (o, &[0]), (c, &[]), (p, &[0, 1])], &[&[], &[0], &[], &[1]]);
        check("full", &[(c, &[]), (c, &[]), (o, &[0, 1]), (o, &[0])], &[&[], &[], &[1], &[]]);
        check("full", &[(o, &[]), (p, &[]), (o, &[]), (p, &[])], &[&[], &[], &[], &[]]);
        check("half", &[(o, &[]), (p, &[]), (o, &[]), (o, &[]), (p, &[0])], &[&[], &[0], &[1], &[], &[3]]);
    }
}
