//! Folders that do not fit, and requests to a model without a tokenizer.

use paceline::{Activation, ModelFolder, Refused, Request, Sizes, load};
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
