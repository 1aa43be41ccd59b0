// What the pages' scripts are. Each attaches by data-… attributes, so swapped content works.
import "./charts.js";
import "./forms.js";
import "./keyboard.js";
import "./live.js";
import "./switches.js";
import "./times.js";
