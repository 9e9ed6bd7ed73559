//! Folders that do not fit, and requests to a model without a tokenizer.

use paceline::{Activation, MemoryNeeded, ModelFolder, Refused, Request, Sizes, load};
use paceline_testkit::paths::{asset, oracle};

use crate::setup::{open, options, sizes, tokens};

fn refusal(folder: &ModelFolder, drafter: Option<&ModelFolder>, sizes: Sizes) -> String {
    let progress = &mut |_, _| {};
    match load(folder, options(folder, drafter, sizes, Activation::Bf16, progress)) {
        Ok(_) => panic!("{} was loaded", folder.origin().display()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn drafters_and_models_that_do_not_fit_are_refused() {
    let tiny = ModelFolder::open(&asset("tiny-gemma4")).unwrap();
    let assistant = ModelFolder::open(&asset("tiny-gemma4-assistant")).unwrap();
    let others = ModelFolder::open(&oracle("gemma4_e_assistant")).unwrap();
    let gemma3 = ModelFolder::open(&oracle("gemma3")).unwrap();
    let small = Sizes { max_drafts: 2, ..Sizes::single(64) };
    let message = refusal(&assistant, None, small);
    assert!(message.contains("assistant"), "{message}");
    for (model, drafter) in [(&tiny, &others), (&gemma3, &assistant)] {
        let message = refusal(model, Some(drafter), small);
        assert!(message.contains("config.json: this drafter does not fit the target"), "{message}");
    }
    let message = refusal(&tiny, Some(&assistant), Sizes { max_drafts: 65, ..small });
    assert!(message.contains("65 drafts"), "{message}");
    let message = refusal(&tiny, None, Sizes::single(1 << 20));
    assert!(message.contains("context is 1048576"), "{message}");
}

#[test]
fn a_folder_without_tokenizer_runs_and_makes_no_text() {
    let mut engine = open(&oracle("gemma4_e"), None, sizes(64, 1, 64, 0), Activation::Bf16);
    let completion = engine.generate(Request::new(tokens(&[2, 105]), 5)).unwrap();
    assert_eq!((completion.token_ids.len(), completion.text), (5, None));
    let mut request = Request::new(tokens(&[2, 105]), 5);
    request.stop = vec!["a".into()];
    assert_eq!(engine.submit(request), Err(Refused::StopWithoutText));
}

#[test]
fn what_drafters_take_is_known_before_they_are_loaded() {
    let tiny = ModelFolder::open(&asset("tiny-gemma4")).unwrap();
    let (sizes, activation) = (Sizes { n_slots: 3, max_drafts: 4, ..Sizes::single(300) }, Activation::Bf16);
    let of = |drafter: Option<&ModelFolder>| {
        let progress = &mut |_, _| {};
        let options = options(&tiny, drafter, sizes, activation, progress);
        let needed = MemoryNeeded::of(&tiny, options.draft.as_ref(), sizes, activation).unwrap();
        (needed, load(&tiny, options).unwrap().backend_info())
    };
    let (plain, loaded_plain) = of(None);
    assert_eq!((plain.kv, plain.drafter_buffers), (loaded_plain.kv_bytes as u64, 0));
    for (name, own_kv) in
        [("tiny-gemma4-assistant", false), ("tiny-gemma4-dflash", true), ("tiny-gemma4", true)]
    {
        let drafter = ModelFolder::open(&asset(name)).unwrap();
        let (needed, loaded) = of(Some(&drafter));
        assert_eq!(needed.kv, loaded.kv_bytes as u64, "{name}");
        assert_eq!(needed.kv > plain.kv, own_kv, "{name}");
        assert_eq!(needed.drafter_buffers > 0, name != "tiny-gemma4", "{name}");
        let weights = needed.weights - plain.weights;
        // What is packed is padded to whole tiles, and vectors take twice as much.
        let taken = (loaded.weight_bytes - loaded_plain.weight_bytes) as u64;
        assert!((weights..weights * 11 / 10).contains(&taken), "{name}: {weights} counted, {taken} taken");
    }
}
