// The scenarios of the real editor, in the order they start: the longest first, so that no long one is left over at the end.
import type { Scenario } from "../trial";
import { adapting } from "./adapting";
import { findingPictures } from "./findingPictures";
import { findings } from "./findings";
import { host } from "./host";
import { looks } from "./looks";
import { model, modelPictures } from "./model";
import { newcomer } from "./newcomer";
import { panels } from "./panels";
import { pictures } from "./pictures";
import { reading } from "./reading";
import { specs } from "./specs";
import { troubles } from "./troubles";
import { trust } from "./trust";
import { understanding } from "./understanding";
import { watching } from "./watching";

/** Run only when the pictures of the README and of docs are to be taken. */
export const ON_DEMAND: readonly Scenario[] = [pictures, findingPictures, modelPictures];

export const SCENARIOS: readonly Scenario[] = [
  adapting,
  understanding,
  model,
  watching,
  findings,
  looks,
  reading,
  troubles,
  specs,
  panels,
  newcomer,
  host,
  trust,
];
