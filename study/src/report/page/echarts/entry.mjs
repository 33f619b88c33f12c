// The parts of Apache ECharts that the report's page uses, and no more.
import { BarChart, CustomChart, LineChart, ScatterChart } from "echarts/charts";
import {
  AriaComponent,
  DataZoomInsideComponent,
  DataZoomSliderComponent,
  GridComponent,
  LegendComponent,
  MarkLineComponent,
  TooltipComponent,
} from "echarts/components";
import { init, use } from "echarts/core";
import { CanvasRenderer, SVGRenderer } from "echarts/renderers";

use([BarChart, CustomChart, LineChart, ScatterChart]);
use([AriaComponent, DataZoomInsideComponent, DataZoomSliderComponent, GridComponent, LegendComponent]);
use([MarkLineComponent, TooltipComponent, CanvasRenderer, SVGRenderer]);

export { init };
