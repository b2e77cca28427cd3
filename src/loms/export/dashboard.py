"""Boards as Grafana dashboards (the classic JSON model), by Grafana's own foundation SDK."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator

with warnings.catch_warnings():
    # It would rather have its second model used, which only Grafana 12 and later can read.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import common as options
    from grafana_foundation_sdk.builders import dashboard as build
    from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, timeseries
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common, dashboard

from loms.export.panels import GREEN, RED, VARIABLES, Board, Panel

TAG = "loms"
_SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
_ANY_ENGINE = '__name__=~"(llm_engine|gen_ai_server)_.+", le=""'
_HEIGHT = {"number": 4, "states": 5, "lines": 8}

Built = timeseries.Panel | stat.Panel | statetimeline.Panel


def dashboard_json(board: Board, datasource: str = "") -> str:
    """The dashboard as Grafana imports it; ``datasource``: name or uid of the data source that is chosen at first."""
    made = (
        build.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .editable()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .variables([_datasource(datasource), *_variables()])
        .link(build.DashboardLink("LOMS").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG]).keep_time(True))
    )
    number = 0
    for title, panels in board.rows.items():
        number += 1
        made.with_row(build.Row(title).id(number))
        for panel in panels:
            number += 1
            made.with_panel(_panel(panel).id(number))
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"


def _datasource(chosen: str) -> build.DatasourceVariable:
    variable = build.DatasourceVariable("datasource").label("Data source").type("prometheus")
    return variable.current(dashboard.VariableOption(True, chosen, chosen)) if chosen else variable


def _variables() -> Iterator[build.QueryVariable]:
    """One for each label that narrows the view; each offers what those before it leave."""
    matchers = [_ANY_ENGINE]
    for label, name in VARIABLES.items():
        query = f"label_values({{{', '.join(matchers)}}}, {label})"
        yield (
            build.QueryVariable(label)
            .label(name)
            .datasource(_SOURCE)
            .query(query)
            .definition(query)
            .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(dashboard.VariableOption(True, ["All"], ["$__all"]))
        )
        matchers.append(f'{label}=~"${label}"')


def _panel(panel: Panel) -> Built:
    """Without its number."""
    made = _KINDS[panel.kind](panel)
    made.title(panel.title).description(panel.description).datasource(_SOURCE).unit(panel.unit)
    made.height(_HEIGHT[panel.kind]).span(panel.width).no_value("no data")
    for ref, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().ref_id(ref).datasource(_SOURCE).expr(query.expr).legend_format(query.legend)
        made.with_target(target.instant() if panel.kind == "number" else target.range())
    if panel.most is not None:
        made.min(0).max(panel.most)
    return made


def _lines(panel: Panel) -> Built:
    made = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(5)
        .show_points(common.VisibilityMode.NEVER)
        .axis_soft_min(0)
        .legend(
            options.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(options.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    )
    if panel.limits:
        style = options.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        made.thresholds(_limits(panel)).thresholds_style(style)
    for ref, query in zip("ABCDEFGH", panel.queries, strict=False):
        if query.right:
            made.override_by_query(ref, _RIGHT)
    return made


def _number(panel: Panel) -> Built:
    return (
        stat.Panel()
        .thresholds(_limits(panel))
        .reduce_options(options.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
    )


def _states(panel: Panel) -> Built:
    words = {
        "0": dashboard.ValueMappingResult(text="down", color=RED),
        "1": dashboard.ValueMappingResult(text="up", color=GREEN),
    }
    return (
        statetimeline.Panel()
        .mappings([dashboard.ValueMap(words)])
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
        .legend(options.VizLegendOptions().show_legend(False))
    )


_KINDS = {"lines": _lines, "number": _number, "states": _states}
_RIGHT = [
    dashboard.DynamicConfigValue("unit", "percentunit"),
    dashboard.DynamicConfigValue("max", 1),
    dashboard.DynamicConfigValue("custom.axisPlacement", "right"),
    dashboard.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 8]}),
]


def _limits(panel: Panel) -> build.ThresholdsConfig:
    steps = [dashboard.Threshold(None, panel.below)]
    steps += [dashboard.Threshold(value, colour) for value, colour in (panel.limits or {}).items()]
    return build.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)
