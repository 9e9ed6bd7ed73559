//! Memory stays flat. In a process of its own, so that nothing else allocates.
#![cfg(target_os = "linux")]

use paceline::{Request, Sizes};
use paceline_testkit::{Nasty, ToyDrafter, ToyModel, toy_engine};

/// Bytes that this process has for its data: not what of it is resident, which the system takes and gives as it likes.
fn data_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).expect("it is among the lines");
    line.trim().strip_suffix(" kB").expect("in this unit").parse::<usize>().expect("a number") << 10
}

#[test]
fn a_thousand_requests_leave_nothing_behind() {
    let model = ToyModel::default();
    let sizes = Sizes { n_slots: 2, max_drafts: 3, ..Sizes::single(200) };
    for drafter in [ToyDrafter::None, ToyDrafter::Nasty(Nasty::Right, vec![])] {
        let mut engine = toy_engine(&model, sizes, &drafter, &[]);
        let mut run = |n: u64| {
            for i in 0..n {
                let completion = engine.generate(Request::new(model.prompt(60, i), 30)).expect("it fits");
                assert_eq!(completion.token_ids.len(), 30);
            }
            data_bytes()
        };
        let warm = run(100);
        let after = run(1000);
        // A leak of a token list a request would be 360 kB, of a slot's state far more.
        assert!(after < warm + (200 << 10), "{} kB more after 1,000 requests", (after - warm) >> 10);
    }
}
